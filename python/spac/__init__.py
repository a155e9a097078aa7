"""Mixture-of-Experts models split between a device and the CPU, with speculative decoding, on llama.cpp."""

from typing import TYPE_CHECKING, Any

from spac import _library

if TYPE_CHECKING:
    from spac.llama_cpp_python.enable import disable, enable
    from spac.llama_cpp_python.llama import Llama

__version__ = "0.1.0"
__all__ = ["Llama", "__version__", "disable", "enable"]

# From here on, an import of spac._core or llama_cpp uses spac's library. Nothing is loaded yet.
_library.install()


def __getattr__(name: str) -> Any:
    """Import a name that loads the library when it is first used."""
    if name == "Llama":
        from spac.llama_cpp_python.llama import Llama

        return Llama
    if name in ("enable", "disable"):
        from spac.llama_cpp_python import enable

        return getattr(enable, name)
    raise AttributeError(f"module 'spac' has no attribute '{name}'")
