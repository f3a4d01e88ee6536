"""A tree like MindSpeed's, with an operator that needs an NPU and an optimizer of its own."""
