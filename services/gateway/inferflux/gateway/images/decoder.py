"""`python -m inferflux.gateway.images.decoder PARENT_PID MEMORY_BYTES CPU_S PIXELS`: decodes one image.

Its file comes in on stdin; what `Pixels.packed` makes goes out on stdout. Decoders are native code that
reads what strangers send, so this process is bounded, and ends after one image. It exits with REFUSED, and a
line on stderr, where the image is at fault.
"""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from inferflux.common.process.child.parent_death import exit_with_parent
from inferflux.common.process.child.process_limits import bound

if TYPE_CHECKING:
    from PIL import Image

REFUSED = 3
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")


def main() -> None:
    run(lambda data, pixels: decode(data, most_pixels=pixels))


def run(work: Callable[[bytes, int], bytes]) -> None:
    """Bound this process, and write what `work` makes of what comes in.

    Args:
        work: given that and the fourth argument of the process; a ValueError says what is at fault.
    """
    parent, memory_bytes, cpu_s, limit = (int(argument) for argument in sys.argv[1:5])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exit_with_parent(signal.SIGKILL, parent=parent)
    bound("RLIMIT_AS", memory_bytes, memory_bytes)
    bound("RLIMIT_CPU", cpu_s, cpu_s)
    bound("RLIMIT_CORE", 0, 0)
    bound("RLIMIT_FSIZE", 0, 0)
    try:
        made = work(sys.stdin.buffer.read(), limit)
    except MemoryError:
        _refuse("it takes too much memory")
    except ValueError as error:
        _refuse(str(error))
    sys.stdout.buffer.write(made)
    sys.stdout.buffer.flush()


def decode(data: bytes, *, most_pixels: int) -> bytes:
    """The pixels of an image's file, packed: upright, on white, no larger than MAX_SIDE at the longer side.

    Raises:
        ValueError: another format, broken, or too many pixels; says which.
    """
    # Once the bounds are set.
    from PIL import Image, ImageOps, UnidentifiedImageError

    from inferflux.common.contract.requests.images import MAX_SIDE, Pixels

    Image.MAX_IMAGE_PIXELS = None
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            width, height = image.size
            if width * height > most_pixels:
                raise ValueError(f"it has {width} x {height} pixels; at most {most_pixels} are taken")
            image.draft("RGB", (MAX_SIDE, MAX_SIDE))
            image.load()
            upright = _of_bytes(ImageOps.exif_transpose(image))
            upright.thumbnail((MAX_SIDE, MAX_SIDE))
            if upright.has_transparency_data:
                layer = upright.convert("RGBA")
                upright = Image.new("RGB", layer.size, "white")
                upright.paste(layer, mask=layer.getchannel("A"))
            shown = upright.convert("RGB")
            return Pixels(shown.width, shown.height, shown.tobytes()).packed()
    except UnidentifiedImageError:
        raise ValueError("it is no PNG, JPEG, WebP or GIF") from None
    except (OSError, SyntaxError, EOFError, IndexError, KeyError, TypeError, ArithmeticError) as error:
        raise ValueError(f"it is broken: {str(error)[:200] or type(error).__name__}") from None


def _of_bytes(image: Image.Image) -> Image.Image:
    """The image with a byte for each channel, as scaling needs it: colours of a palette cannot be mixed."""
    if image.mode.startswith("I"):  # 16 bits of grey
        clear, wide = image.info.get("transparency"), image.convert("I")
        grey = wide.point([round(value / 257) for value in range(1 << 16)], "L")
        if isinstance(clear, int):
            grey.putalpha(wide.point([0 if value == clear else 255 for value in range(1 << 16)], "L"))
        return grey
    if image.mode in ("1", "P", "PA"):
        return image.convert("RGBA" if image.has_transparency_data else "RGB")
    return image


def _refuse(why: str) -> NoReturn:
    sys.stderr.write(" ".join(why.split()) + "\n")
    sys.stderr.flush()
    sys.exit(REFUSED)


if __name__ == "__main__":
    main()
