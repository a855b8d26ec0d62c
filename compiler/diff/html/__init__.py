"""A report as one page of HTML: `page` puts it together, `trees`, `wiring` and `source` are the data of its views, and the scripts and
styles beside them are put into it as they are."""
