"""What becomes of a checkpoint: `plan` and `unify` say of one edit how each tensor is made (`recipes`), `keys` chains them into the key
map, `keymap` and `keymap_read` are its file, `migrate` executes it, and `verify` runs both models (`engines`) to check it."""
