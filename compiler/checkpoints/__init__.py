"""Weights: files and folders of them, the rules by which foreign tensors become ours, and the way back."""
