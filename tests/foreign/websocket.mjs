// A user of `ws` who comes back after each end: prints the seq of every record.
import WebSocket from "ws";

const [url, topic] = process.argv.slice(2);
let place = { from_seq: 0 };

function open() {
  const socket = new WebSocket(url);
  socket.on("open", () => socket.send(JSON.stringify({ op: "subscribe", topic, ...place })));
  socket.on("message", (data) => {
    const frame = JSON.parse(data);
    if (frame.op !== "record") return;
    for (const record of frame.records) console.log(record.$seq);
    place = { from_seq: frame.to_seq, epoch: frame.epoch };
  });
  socket.on("error", () => {});
  socket.on("close", () => setTimeout(open, 200));
}
open();
