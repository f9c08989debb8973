"""Makes GGUF files of models as Hugging Face's libraries save them. No code of a model is run.

`folder.convert` is the whole; `architectures` says what each kind of model is made of.
"""

from .errors import ConversionError
from .folder import Converted, convert

__all__ = ["ConversionError", "Converted", "convert"]
