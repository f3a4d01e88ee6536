"""`anyfuse demo`: trains a small language model on real text with the operators, and runs it with them."""
