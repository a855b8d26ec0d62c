"""Exported folders: what is planned, written, certified and quantised, for ONNX Runtime, GenAI and Triton."""
