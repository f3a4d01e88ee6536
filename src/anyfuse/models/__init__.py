"""Whole language models in W8A8: conversion, storage, evaluation. Hugging Face's transformers, extra `hf`."""

from .adapter import ADAPTERS as ADAPTERS
from .adapter import Adapter as Adapter
from .convert import Report as Report
from .convert import quantize_ as quantize_
from .storage import load_quantized as load_quantized
from .storage import save_quantized as save_quantized
