"""From a directory to the state that was acknowledged, in steps.

`inventory` makes topics and blocks of a snapshot and the files in seg/, `replay` folds the log
after it into them (`records` has what brings records, `replay_frames` one function for each other
kind of frame), `rederive` makes router copies again from their maps, `batches` the records of
commits from their stages. `recovery` drives them and concludes: what a crash may
have taken becomes an explicit loss, in a new generation of the log, and only when all of that is
durable does it count. Applying a frame twice is applying it once, so a start that was cut short is
simply repeated.
"""
