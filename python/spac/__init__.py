"""Mixture-of-Experts models split between a device and the CPU, with speculative decoding, on llama.cpp."""

from spac import _library

__version__ = "0.1.0"
__all__ = ["__version__"]

# From here on, whoever imports spac._core or llama_cpp gets them on spac's library. Nothing is loaded yet.
_library.install()
