// A user of Node's http2 with many requests at once: prints how many were answered well.
import http2 from "node:http2";

const url = new URL(process.argv[2]);
const session = http2.connect(url.origin);

// Says what was answered, and how much of it came.
function ask(path, body) {
  return new Promise((resolve) => {
    const request = session.request({
      ":method": "POST", ":path": url.pathname + path, "content-type": "application/json",
    });
    let status = 0, size = 0;
    request.on("response", (headers) => { status = headers[":status"]; });
    request.on("data", (piece) => { size += piece.length; });
    request.on("error", (error) => { console.error(path, error.message); });
    request.on("close", () => resolve([status, size]));
    request.end(body);
  });
}

const upload = JSON.stringify(Array(4_000).fill("line"));
let answered = 0;

async function work(worker) {
  for (let number = 0; number < 20; number++) {
    const [status] = await ask("/topics/small", JSON.stringify({ records: [{ data: `${worker}-${number}` }] }));
    answered += status === 200 || status === 201;
  }
  const [status, size] = await ask("/topics/large/range", '{"from_seq": 0}');
  answered += status === 200 && size > 3_000_000;
  const [refused] = await ask("/nowhere", upload);
  answered += refused === 404;
}

await Promise.all(Array.from({ length: 16 }, (_, worker) => work(worker)));
console.log(answered);
session.close();
