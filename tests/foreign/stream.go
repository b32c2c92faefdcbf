// A user of net/http who comes back with the last id: prints the seq of every record.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

type frame struct {
	Records []struct {
		Seq int `json:"$seq"`
	} `json:"records"`
}

func main() {
	lastID := ""
	for ; ; time.Sleep(200 * time.Millisecond) {
		request, _ := http.NewRequest("GET", os.Args[1], nil)
		request.Header.Set("Accept", "text/event-stream")
		if lastID != "" {
			request.Header.Set("Last-Event-ID", lastID)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			continue
		}
		if response.StatusCode != 200 {
			fmt.Println("closed")
			os.Exit(1)
		}
		event, id := "", ""
		lines := bufio.NewReader(response.Body)
		for {
			line, err := lines.ReadString('\n')
			if err != nil {
				break
			}
			name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			switch name {
			case "event":
				event = value
			case "id":
				id = value
			case "data":
				if event == "record" {
					var found frame
					if json.Unmarshal([]byte(value), &found) != nil {
						os.Exit(2)
					}
					for _, record := range found.Records {
						fmt.Println(record.Seq)
					}
				}
			case "":
				if line == "\n" && id != "" {
					lastID = id
				}
			}
		}
		response.Body.Close()
	}
}
