"""What is asked and answered once: topics, records, diffs, ranges, cursors, stages, metrics.

Each module is one piece of the surface, with its rows of the route table. A handler answers, or
returns PENDING and answers when its ticket has ended, its wait is over, or its turn has come.
"""
