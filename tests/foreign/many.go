// A user of net/http over HTTP/2 with many requests at once: prints how many were answered well.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
)

// Small pieces: each is acknowledged, and on the two windows of stream and connection.
const pieceBytes = 4096

var client *http.Client

// Says what was answered, and how much of it came.
func ask(path string, body []byte) (int, int) {
	response, err := client.Post(os.Args[1]+path, "application/json", bytes.NewReader(body))
	if err != nil {
		fmt.Fprintln(os.Stderr, path, err)
		return 0, 0
	}
	defer response.Body.Close()
	count, piece := 0, make([]byte, pieceBytes)
	for {
		size, err := response.Body.Read(piece)
		count += size
		if err == io.EOF {
			return response.StatusCode, count
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, path, err)
			return 0, count
		}
	}
}

func main() {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client = &http.Client{Transport: &http.Transport{Protocols: protocols}}
	upload := []byte("[" + strings.Repeat(`"line", `, 4_000) + `"line"]`)
	var workers sync.WaitGroup
	answered := make(chan int, 1000)
	for worker := range 16 {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for number := range 20 {
				record := fmt.Sprintf(`{"records": [{"data": "%d-%d"}]}`, worker, number)
				if status, _ := ask("/topics/small", []byte(record)); status == 200 || status == 201 {
					answered <- 1
				}
			}
			if status, size := ask("/topics/large/range", []byte(`{"from_seq": 0}`)); status == 200 && size > 3_000_000 {
				answered <- 1
			}
			// Refused while it is on its way: the requests beside it go on.
			if status, _ := ask("/nowhere", upload); status == 404 {
				answered <- 1
			}
		}()
	}
	workers.Wait()
	fmt.Println(len(answered))
}
