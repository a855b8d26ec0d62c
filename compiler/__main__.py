"""`python -m nnspec`."""

from .cli import main

main()
