"""Calls of each operator for tests, harness and benchmark: one module an operator, of its name, loaded when asked for.

Each ends with `SAMPLES`, a `Samples`: what it holds is said there.
"""
