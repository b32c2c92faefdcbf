// A browser's EventSource, as npm has it: prints the seq of every record, and that it gave up.
import { EventSource } from "eventsource";

const events = new EventSource(process.argv[2]);
events.addEventListener("record", (event) => {
  for (const record of JSON.parse(event.data).records) console.log(record.$seq);
});
events.addEventListener("error", () => {
  if (events.readyState === EventSource.CLOSED) {
    console.log("closed");
    process.exit(1);
  }
});
// Its timer for coming back does not keep the process.
setInterval(() => {}, 1000);
