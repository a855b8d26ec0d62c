"""What exported models are as ONNX files: `embedded` is the spec inside one, `onnx_layer` the differences, `providers` and `dry_run` where
ONNX Runtime places their nodes."""
