"""The pixels of a PIL image as one canonical stream of bytes, read where they lie.

Pillow keeps the modes with more than one band as four bytes a pixel. In RGB, YCbCr, LAB and HSV the fourth byte is
padding of no fixed value (a decoder leaves 255, ``paste`` and ``resize`` leave what they like), and LA, PA and La keep
the first band three times, of which only one counts. The canonical stream is what Pillow keeps, with the bytes that
do not count set to 0; mode 1 is the exception, packed to bits as ``tobytes`` does it.

There are three ways to read, and all of them give this stream:

* an image that lies in one block (up to 16 MB by default) is exported through the Arrow interface without a copy;
* a larger one, or one that Pillow mapped, is pasted strip by strip into a small canvas, which is exported;
* where Arrow exports nothing (unusual row alignment, rows of more than a block), each strip is read with ``tobytes``
  and brought into the form above.

``__array_interface__`` and ``tobytes`` on whole images are copies through Python, ten times as slow as the hash.
"""

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from mmcache.errors import UnsupportedSource

if TYPE_CHECKING:
    import numpy
    from PIL.Image import Image

    from mmcache.fingerprints.hashers import HashState

    Words = numpy.ndarray[Any, numpy.dtype[numpy.uint32]]

# Large enough that every hash lets go of the GIL (xxhash does from about 100 KB on) and that taking it again does not
# count; small enough that masked bytes are still in the second-level cache when they are hashed.
_PIECE_BYTES = 384 << 10

# Bytes a pixel in Pillow's memory.
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV", "LA", "PA", "La"), 4),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 4),
}

# Modes with bytes that do not count: 255 where a byte does, else 0.
_PADDED = {
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), bytes((255, 255, 255, 0))),
    **dict.fromkeys(("LA", "PA", "La"), bytes((255, 0, 0, 255))),
}

# PyBUF_READ and PyBUF_WRITE.
_READ, _WRITE = 0x100, 0x200


class _ArrowArray(ctypes.Structure):
    """The struct of https://arrow.apache.org/docs/format/CDataInterface.html#the-arrowarray-structure."""


_ArrowArray._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_ArrowArray))),
    ("dictionary", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]

# Prototypes of our own: setting them on ``ctypes.pythonapi`` would change them for everybody in the process.
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_memory_at = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)(
    ("PyMemoryView_FromMemory", ctypes.pythonapi)
)


class _Scratch(threading.local):
    """One piece of memory a thread, since fresh memory costs more in page faults than the masking does."""

    words: "Words | None" = None


_scratch = _Scratch()


def update_pixels(image: "Image", state: "HashState") -> None:
    """Feed the canonical stream of a loaded image into a hash.

    The length of the stream follows from mode and size, so these must be hashed too. Byte order in modes I, F and
    I;16N is the machine's. Raises ``UnsupportedSource`` for a mode that no public version of Pillow reads.
    """
    if image.width == 0 or image.height == 0:
        return
    if image.mode not in _PIXEL_BYTES and image.mode != "1":
        raise UnsupportedSource(f"an image of mode {image.mode!r}; accepted are 1, {', '.join(_PIXEL_BYTES)}")
    exported = _export(image)
    if exported is not None:
        _update_memory(exported.view, image.mode, state)
    else:
        _update_strips(image, state)


def _update_strips(image: "Image", state: "HashState") -> None:
    import PIL.Image

    row_bytes = image.width * _PIXEL_BYTES.get(image.mode, 1)
    rows = max(1, _PIECE_BYTES // row_bytes)
    # Pasting into one canvas, where ``crop`` would make a strip each time: fresh memory costs more than the hash.
    canvas = PIL.Image.new(image.mode, (image.width, rows))
    exported = _export(canvas, _WRITE)
    for top in range(0, image.height, rows):
        height = min(rows, image.height - top)
        if exported is None:
            _update_packed(image.crop((0, top, image.width, top + height)), state)
        else:
            canvas.paste(image, (0, -top))
            _update_memory(exported.view[: height * row_bytes], image.mode, state)


class _Exported:
    """Pixels in Pillow's memory, which lives as long as the capsule does."""

    def __init__(self, capsule: object, address: int, n_bytes: int, access: int) -> None:
        self.capsule = capsule
        self.view: memoryview = _memory_at(address, n_bytes, access)


def _export(image: "Image", access: int = _READ) -> _Exported | None:
    """Export the image's memory; None where it is not one block of rows without gaps."""
    if image.mode not in _PIXEL_BYTES or not _exports_safely(image):
        return None
    try:
        _, capsule = image.__arrow_c_array__()
    except (ValueError, MemoryError):
        return None
    array = _ArrowArray.from_address(_capsule_pointer(capsule, b"arrow_array"))
    # Pixels of four bands are fixed-size lists, whose bytes are a child; others are values by themselves.
    values, value_bytes = array, _PIXEL_BYTES[image.mode]
    if array.n_children:
        values, value_bytes = array.children[0].contents, 1
    n_bytes = image.width * image.height * _PIXEL_BYTES[image.mode]
    if array.offset or values.offset or values.length * value_bytes != n_bytes or not values.buffers[1]:
        return None
    return _Exported(capsule, values.buffers[1], n_bytes, access)


def _exports_safely(image: "Image") -> bool:
    """Say whether this Pillow looks at how rows lie before it exports an image.

    Below 13 it does not: an image that it mapped from foreign memory (``frombuffer``, some BMP and TIFF files), which
    is what read-only means, crashes the process, and aligned rows would be exported with the gaps between them.
    """
    import PIL.Image

    if int(PIL.__version__.partition(".")[0]) >= 13:
        return True
    return not image.readonly and PIL.Image.core.get_alignment() == 1  # type: ignore[attr-defined]


def _update_memory(view: memoryview, mode: str, state: "HashState") -> None:
    """Hash pixels as Pillow keeps them, with the bytes that do not count set to 0, a piece at a time."""
    if mode not in _PADDED:
        state.update(view)
        return
    import numpy

    words = numpy.frombuffer(view, numpy.uint32)
    mask = numpy.frombuffer(_PADDED[mode], numpy.uint32)[0]
    # A canvas is masked in place, the caller's image of course not.
    target = words if words.flags.writeable else _scratch_words()
    for start in range(0, len(words), _PIECE_BYTES // 4):
        piece = words[start : start + _PIECE_BYTES // 4]
        masked = numpy.bitwise_and(piece, mask, out=target[: len(piece)])
        state.update(masked.view(numpy.uint8).data)


def _scratch_words() -> "Words":
    import numpy

    if _scratch.words is None:
        _scratch.words = numpy.empty(_PIECE_BYTES // 4, numpy.uint32)
    return _scratch.words


def _update_packed(strip: "Image", state: "HashState") -> None:
    """Hash what only ``tobytes`` gives, in the form that the export would have had."""
    import numpy

    packed = strip.tobytes()
    mask = _PADDED.get(strip.mode)
    if mask is None:
        state.update(packed)
        return
    kept = [band for band in range(4) if mask[band]]
    pixels = numpy.zeros((strip.width * strip.height, 4), numpy.uint8)
    pixels[:, kept] = numpy.frombuffer(packed, numpy.uint8).reshape(-1, len(kept))
    if strip.mode == "LAB":  # packed a and b are signed, Pillow's memory has them shifted by 128
        pixels[:, 1:3] ^= 128
    state.update(pixels.data)
