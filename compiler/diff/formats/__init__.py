"""A report for each who reads it: a terminal, a pull request, a program, continuous integration, Model Explorer. The page of HTML is
`nnspec.diff.html`. Words that all share are in `words`."""
