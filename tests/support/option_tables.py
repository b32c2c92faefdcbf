"""The tables of options in docs/spark.md, made of the options themselves.

python -m tests.support.option_tables    # writes them anew
"""

from __future__ import annotations

from pathlib import Path

from pyspark_topics.options import SINK, SOURCE, Option

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TABLES = {"source": SOURCE, "sink": SINK}


def table(options: tuple[Option, ...]) -> str:
    lines = ["| option | default | for | meaning |", "|---|---|---|---|"]
    lines += [f"| `{one.name}` | {one.default} | {one.reads} | {one.meaning} |" for one in options]
    return "\n".join(lines)


def refreshed(page: str) -> str:
    """The page with its tables as they have to be."""
    for name, options in TABLES.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        head, _, rest = page.partition(begin)
        _, closed, tail = rest.partition(end)
        assert closed, f"the page has no part for {name}"
        page = f"{head}{begin}\n\n{table(options)}\n\n{end}{tail}"
    return page


if __name__ == "__main__":
    PAGE.write_text(refreshed(PAGE.read_text()))
