// Uses the types that openapi-typescript made of the document, with openapi-fetch.
import createClient from "openapi-fetch";
import type { paths } from "./api.js";

declare const process: { argv: string[] };
const client = createClient<paths>({ baseUrl: process.argv[2] });

function sure<T>(answer: { data?: T; error?: unknown }): T {
  if (answer.data === undefined) throw new Error(JSON.stringify(answer.error));
  return answer.data;
}

function same(found: unknown, wanted: unknown): void {
  if (JSON.stringify(found) !== JSON.stringify(wanted)) {
    throw new Error(`${JSON.stringify(found)} is not ${JSON.stringify(wanted)}`);
  }
}

const orders = { params: { path: { topic: "ts-orders" } } };
const jobs = { params: { path: { topic: "ts-jobs" } } };

const written = sure(
  await client.POST("/v0/topics/{topic}", {
    ...orders,
    body: { records: [{ data: { n: 1 }, tag: "t", meta: { source: "test" } }, { data: 2 }] },
  }),
);
same(written.seqs, [1, 2]);
const page = sure(await client.POST("/v0/topics/{topic}/diff", { ...orders, body: { from_seq: 0 } }));
same(page.records.map((record) => record.data), [{ n: 1 }, 2]);
same(page.records[0].meta?.source, "test");
sure(await client.PUT("/v0/topics/{topic}", { ...jobs, body: { type: "queue" } }));
sure(await client.POST("/v0/topics/{topic}", { ...jobs, body: { records: [{ data: "job" }] } }));
const claim = sure(await client.POST("/v0/topics/{topic}/claim", { ...jobs, body: { node: "w" } }));
const [job] = claim.claimed;
same(job.data, "job");
const done = sure(
  await client.POST("/v0/topics/{topic}/ack", {
    ...jobs,
    body: { node: "w", seqs: [job.$seq], lease_ids: [job.lease_id] },
  }),
);
same([done.acked, done.ready], [1, 0]);
const missing = await client.GET("/v0/topics/{topic}", { params: { path: { topic: "nowhere" } } });
same(missing.error?.error.code, "topic_not_found");
console.log("done");
