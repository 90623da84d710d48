"""The digest of what a caller hands over for one image.

A source is known by its content alone: never by a path, a file name, an ``id`` or a metadata field. Each kind has a
domain of its own, since processors treat the same pixels differently as an image, as an array (they guess the channel
axis) and as a file (which is turned upright and converted first).
"""

import functools
import io
import os
import sys
from typing import TYPE_CHECKING, Any, Literal

from mmcache.errors import UnsupportedSource
from mmcache.fingerprints.arrays import array_pieces, has_exact_bytes, is_readable, tensor_pieces
from mmcache.fingerprints.encoding import encode
from mmcache.fingerprints.hashers import Hasher, HashState
from mmcache.fingerprints.loading import UndecodableSource, load
from mmcache.fingerprints.metadata import encode_handed_over, encode_metadata, lazy_file
from mmcache.fingerprints.pixels import update_pixels
from mmcache.fingerprints.texts import digest_text, file_of, is_url

if TYPE_CHECKING:
    import numpy
    import torch
    from PIL.Image import Image

Kind = Literal["image", "array", "tensor", "encoded", "path"]

# A part of every digest: raise it whenever an equal source would get another digest.
SCHEME = 1

# No file name is longer, and a base64 string of megabytes should not travel to the kernel to find that out.
_LONGEST_PATH = 4096


def kind_of(source: object) -> Kind | None:
    """Say what kind of source this is, or None where it is none that can be known by its content.

    An image is any PIL image; an array an exact ``numpy.ndarray`` or ``memmap``; a tensor an exact ``torch.Tensor`` or
    ``Parameter``; encoded are bytes, bytearray, memoryview and ``io.BytesIO``; a path is a ``str`` or ``os.PathLike``
    that names an existing file. URLs, base64 strings and subclasses (masked arrays, ``tv_tensors``) are None.
    """
    if type(source) in (bytes, bytearray, memoryview, io.BytesIO):
        return "encoded"
    if isinstance(source, (str, os.PathLike)):
        return "path" if _names_file(source) else None
    if isinstance(source, _classes("PIL.Image", "Image")):
        return "image"
    if type(source) in _classes("numpy", "ndarray", "memmap"):
        return "array"
    if type(source) in _classes("torch", "Tensor") + _classes("torch.nn", "Parameter"):
        return "tensor"
    return None


def _classes(module: str, *names: str) -> tuple[type, ...]:
    """Find classes of a library that may be absent, or half imported by another thread.

    Nothing can be an instance of a class that is not there yet, so no library is ever imported to look.
    """
    return tuple(cls for name in names if isinstance(cls := getattr(sys.modules.get(module), name, None), type))


def _names_file(source: "str | os.PathLike[Any]") -> bool:
    if isinstance(source, str) and is_url(source):
        return False  # whatever lies in a folder that is called "http:", loaders fetch it
    try:
        path = os.fspath(source)
        return len(path) <= _LONGEST_PATH and os.path.isfile(path)
    except (OSError, ValueError, TypeError):
        return False


def digest_source(source: object, hasher: Hasher, *, metadata: bool = False) -> bytes:
    """Return the digest of one source.

    An image counts by mode, size, pixels, palette and ``info["transparency"]``, which is all that processors read of
    it; arrays and tensors by dtype, shape and bytes in C order (arrays also by whether a stride is negative, which
    torch refuses); encoded bytes and files by their bytes and by how this process would decode them, without decoding
    them. With ``metadata=True``, for functions of the user's which may read more, an image counts also by its class,
    format, all of its ``info``, EXIF and other attributes, a lazily opened one by its file instead of its pixels (it is
    not loaded, since a function may draft it), a tensor also by ``requires_grad``, encoded bytes by their type and
    position, and a path or ``file://`` URL by its type and text, beside its content; data URLs and base64 texts, which
    are sources for functions only, count by themselves.

    Raises ``UnsupportedSource`` for anything else, ``NotEncodable`` for metadata that cannot be hashed exactly, and
    ``UndecodableSource`` where the image or the file cannot be read.
    """
    kind = kind_of(source)
    state = hasher.new()
    match kind:
        case "image":
            _update_image(source, state, metadata)  # type: ignore[arg-type]
        case "array":
            _update_array(source, state)  # type: ignore[arg-type]
        case "tensor":
            _update_tensor(source, state, metadata)  # type: ignore[arg-type]
        case "encoded" | "path":
            handed_over = encode_handed_over(source) if metadata else b""
            return digest_encoded(read_encoded(source), kind, hasher, handed_over)
        case None:
            if metadata and type(source) is str:
                return _digest_text(source, hasher)
            raise unsupported(source)
    return state.digest()


def _digest_text(text: str, hasher: Hasher) -> bytes:
    path = file_of(text)
    if path is None:
        return digest_text(text, hasher, _decoding())
    if not _names_file(path):
        raise UnsupportedSource("a file:// URL that names no existing file")
    return digest_encoded(read_encoded(path), "path", hasher, encode(("file URL", text)))


def handling(source: object) -> tuple[object, ...]:
    """Return what decides how an array or tensor is handled beside its elements, ready to be encoded.

    That is its strides where it does not lie in C order (equal elements are one fingerprint, but a few processors
    compute other bits from another order: in transformers 5.24 the PIL backends of Pix2Struct and Kosmos2.5), and
    whether autograd follows it (which many refuse).
    """
    kind = kind_of(source)
    if kind == "array":
        return () if source.flags.c_contiguous else source.strides  # type: ignore[attr-defined]
    if kind == "tensor":
        strides = () if source.is_contiguous() else source.stride()  # type: ignore[attr-defined]
        return (*strides, source.requires_grad)  # type: ignore[attr-defined]
    return ()


def unsupported(source: object) -> UnsupportedSource:
    """Make the error that says what this is and what would be accepted."""
    what = f"{type(source).__module__}.{type(source).__qualname__}"
    hint = ""
    if isinstance(source, (str, os.PathLike)):
        hint = " that names no existing file (a URL names no content: fetch it first)"
    return UnsupportedSource(
        f"a {what}{hint} is no source that mmcache can fingerprint; accepted are PIL images, numpy arrays and torch "
        f"tensors (no subclasses), encoded bytes, io.BytesIO, and paths of existing files"
    )


def _header(kind: str, *parts: object) -> bytes:
    return encode(("mmcache source", SCHEME, kind, *parts))


def read_encoded(source: Any) -> bytes | memoryview:
    """Return the bytes of a source of kind "encoded" or "path", which is opened once.

    A ``BytesIO`` is read from its position on, and stays there. What is returned is what must be decoded on a miss: a
    file may be another one when it is opened again. Raises ``UndecodableSource`` for what cannot be read.
    """
    try:
        if isinstance(source, io.BytesIO):
            return memoryview(source.getvalue())[source.tell() :]
        if isinstance(source, memoryview):
            return source.cast("B") if source.c_contiguous else source.tobytes()
        if isinstance(source, (bytes, bytearray)):
            return memoryview(source)
        with open(source, "rb") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise UndecodableSource(error) from error


def digest_encoded(
    data: bytes | memoryview, kind: Literal["encoded", "path"], hasher: Hasher, handed_over: bytes = b""
) -> bytes:
    """Return the digest of an encoded picture's bytes, of Pillow's ways to decode them, and of how they came."""
    state = hasher.new()
    state.update(_header(kind, *_decoding(), handed_over, len(data)))
    state.update(data)
    return state.digest()


def _decoding() -> tuple[object, ...]:
    """Everything process-wide that decides what Pillow makes of given bytes."""
    import PIL
    from PIL import GifImagePlugin, Image, ImageFile

    strategy = GifImagePlugin.LOADING_STRATEGY
    return PIL.__version__, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS, strategy


# How code gets at an image's pixels.
_WAYS_TO_PIXELS = ("convert", "tobytes", "__array_interface__", "getdata", "resize", "crop", "load", "copy")


@functools.cache
def _is_pillows(cls: type) -> bool:
    """Whether an image class gives its pixels as Pillow does; plugins may decode in their own way (``load``)."""
    owners = {n: next((base for base in cls.__mro__ if n in vars(base)), cls) for n in _WAYS_TO_PIXELS}
    return all(name == "load" or owner.__module__.partition(".")[0] == "PIL" for name, owner in owners.items())


def _check_image(image: "Image") -> None:
    cls: Any = type(image)
    if not _is_pillows(cls) or any(name in vars(image) for name in _WAYS_TO_PIXELS):
        raise UnsupportedSource("an image whose class or instance gives its pixels in a way of its own")


def _update_image(image: "Image", state: HashState, metadata: bool) -> None:
    _check_image(image)
    if metadata and (file := lazy_file(image)) is not None:
        state.update(_header("lazy image", *_decoding(), encode_metadata(image, lazy=True), len(file)))
        state.update(file)
        return
    if metadata and getattr(image, "tile", None):
        raise UnsupportedSource("an image that was not loaded before its file was closed")
    load(image)
    # ``load`` has brought a palette that was set before into Pillow's own memory, where conversions read it.
    palette = _palette(image) if image.mode in ("P", "PA") else None
    transparency = (image.info["transparency"],) if "transparency" in image.info else ()
    byte_order = sys.byteorder if image.mode in ("I", "F", "I;16N") else ""
    extra = (encode_metadata(image),) if metadata else ()
    state.update(_header("image", image.mode, image.size, byte_order, palette, transparency, *extra))
    update_pixels(image, state)


def _palette(image: "Image") -> tuple[str, bytes]:
    """Return a palette's mode and entries.

    A conversion brings ``info["transparency"]`` into Pillow's own palette, which is RGBA from then on: the same image.
    """
    mode = image.im.getpalettemode()
    entries = bytes(image.getpalette(None) or ())
    if mode != "RGBA" or "transparency" not in image.info:
        return mode, entries
    transparency, alpha = image.info["transparency"], bytearray(b"\xff" * (len(entries) // 4))
    if isinstance(transparency, bytes):
        alpha[: len(transparency)] = transparency[: len(alpha)]
    elif isinstance(transparency, int) and transparency < len(alpha):
        alpha[transparency] = 0
    if entries[3::4] != alpha:
        return mode, entries
    return "RGB", bytes(byte for place, byte in enumerate(entries) if place % 4 != 3)


def _update_array(array: "numpy.ndarray[Any, Any]", state: HashState) -> None:
    if not has_exact_bytes(array.dtype):
        raise UnsupportedSource(f"a numpy array of dtype {array.dtype}: its bytes are not its value")
    backwards = any(stride < 0 for stride in array.strides)
    state.update(_header("array", array.dtype.str, array.shape, backwards))
    for piece in array_pieces(array):
        state.update(piece.data)


def _update_tensor(tensor: "torch.Tensor", state: HashState, metadata: bool) -> None:
    if not is_readable(tensor):
        raise UnsupportedSource(
            f"a tensor on {tensor.device} with {tensor.layout} layout and dtype {tensor.dtype}; accepted are dense, "
            f"unquantised tensors in CPU memory"
        )
    extra = ("metadata", tensor.requires_grad) if metadata else ()
    state.update(_header("tensor", str(tensor.dtype), tuple(tensor.shape), *extra))
    try:
        for piece in tensor_pieces(tensor):
            state.update(piece.data)
    except (RuntimeError, TypeError) as error:  # no storage of its own, such as inside vmap
        raise UnsupportedSource(f"a tensor whose memory cannot be read: {error}") from error
