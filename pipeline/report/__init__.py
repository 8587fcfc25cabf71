"""The report of a run: charts as plain figures, and the page, Markdown and comparison made of them."""
