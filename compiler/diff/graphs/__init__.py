"""Two typed graphs compared. `regions` walks both side by side: `matching` and `align` say which node and which copy is which, `strays`
and `moves` what stands elsewhere, `wiring` what reads what, `stacks` how copies changed; `function` whether both compute the same."""
