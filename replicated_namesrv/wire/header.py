"""Headers of remoting commands, JSON and ROCKETMQ binary (``RemotingCommand``, ``RocketMQSerializable``).

Reading is exactly as lenient as fastjson in RocketMQ 5.x: if Java fails and closes the connection, FrameError is raised.
Additional limits, such as ``MAX_HEADER_FIELDS``, keep the cost of a header below a few milliseconds.

If a request differs from an earlier one only in its opaque, a server can answer it without reading it. The bytes around the
opaque identify the request, and ``AnswerParts`` is the answer around its opaque. In a binary header the opaque has a fixed
place (``BINARY_OPAQUE``). In a JSON header a plain text search finds a number after ``"opaque":``. ``opaque_is_certain`` then
proves, once for each pair (before, after), that this number is the opaque and nothing else: it reads the header with two
different numbers in that place. Only proven pairs may be cached. Then equal surroundings mean an equal request, whatever else the
header contains.
"""

from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple

import orjson

from replicated_namesrv.errors import FrameError
from replicated_namesrv.steps import finish
from replicated_namesrv.wire.codes import RESPONSE_FLAG, SERVER_VERSION, LanguageCode, SerializeType
from replicated_namesrv.wire.fastjson import (
    INT_MAX,
    INT_MIN,
    MAX_ESCAPES,
    MalformedJsonError,
    decode_utf8,
    members,
    parse_steps,
    to_int,
    to_map,
    to_text,
)
from replicated_namesrv.wire.fastjson_writer import quote
from replicated_namesrv.wire.frame import Buffer, frame, frame_prefix

MAX_HEADER_FIELDS: Final = 4096
"""Maximum number of members of a JSON header, and of entries in the map of a binary one. Real headers have about ten."""

JSON: Final = int(SerializeType.JSON)
ROCKETMQ: Final = int(SerializeType.ROCKETMQ)

BINARY_OPAQUE: Final = slice(5, 9)
"""Position of the opaque in a binary header."""

MAX_PLAIN_BYTES: Final = 65_536
"""Maximum length of the JSON header of a request that is read in one step, whatever it contains."""
_FIXED = Struct(">hbhiii")
_SHORT = Struct(">h")
_INT = Struct(">i")
_LANGUAGE_NAMES = {code.value: code.name for code in LanguageCode}
_LANGUAGE_CODES: dict[str, int] = {code.name: code.value for code in LanguageCode}
_MEMBERS = frozenset(("code", "extFields", "flag", "language", "opaque", "remark", "serializeTypeCurrentRPC", "version"))


class RemotingHeader(NamedTuple):
    """One header of a request or response. The defaults are the meaning of absent members."""

    code: int = 0
    flag: int = 0
    """Sum of ``RESPONSE_FLAG`` and ``ONEWAY_FLAG``, if set."""
    language: int | None = LanguageCode.JAVA.value
    """Ordinal of ``LanguageCode``. None: an unknown language."""
    opaque: int = 0
    """An int32 that identifies the request on its connection."""
    version: int = 0
    """Ordinal of ``MQVersion.Version``."""
    remark: str | None = None
    ext_fields: dict[str, str] | None = None
    """The map of extFields. None: there is no map. JSON writes this differently from an empty map."""
    serialize_type: int = JSON
    """The encoding (``SerializeType``) from which the header was decoded and in which it is encoded."""

    @property
    def is_response(self) -> bool:
        return self.flag & 1 != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & 2 != 0


class AnswerParts(NamedTuple):
    """An answer without its opaque."""

    serialize_type: int
    before: bytes
    """The part of the header before the opaque."""
    after: bytes
    """The part of the header after the opaque."""
    body: bytes


def decode_header(data: Buffer, serialize_type: int, plain_bytes_max: int = MAX_PLAIN_BYTES) -> RemotingHeader:
    """The header in ``data``. Raises FrameError. ``plain_bytes_max``: maximum length of plain JSON that is read in one step."""
    return decode_json_header(data, plain_bytes_max) if serialize_type == JSON else decode_binary_header(data)


def encode_header(header: RemotingHeader) -> bytes:
    """``header`` as Java writes it, in its serialize type."""
    return encode_json_header(header) if header.serialize_type == JSON else encode_binary_header(header)


def decode_json_header(data: Buffer, plain_bytes_max: int = MAX_PLAIN_BYTES) -> RemotingHeader:
    """A JSON header. Raises FrameError."""
    header = _decode_plain(data) if len(data) <= plain_bytes_max else None
    if header is not None:
        return header
    try:
        text = decode_utf8(data)
        if text.count("\\") > MAX_ESCAPES:
            raise MalformedJsonError(f"more than {MAX_ESCAPES} escapes")
        value = finish(parse_steps(text, MAX_HEADER_FIELDS))
        if type(value) is not dict:
            raise MalformedJsonError(f"not an object but {value!r:.40}")
        given = members(value, _MEMBERS)
        fields = to_map(given.get("extFields"), "extFields")
        return RemotingHeader(
            to_int(given.get("code"), "code"),
            to_int(given.get("flag"), "flag"),
            _language(given),
            to_int(given.get("opaque"), "opaque"),
            to_int(given.get("version"), "version"),
            to_text(given.get("remark")),
            None if fields is None else _texts(fields),
        )
    except MalformedJsonError as error:
        raise FrameError(f"JSON header: {error}") from None


def _decode_plain(data: Buffer) -> RemotingHeader | None:
    """A header of plain JSON with members of the usual types and names. None: the header is not of this form, and the lenient
    reader has to read it.
    """
    try:
        given = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if type(given) is not dict or not _MEMBERS.issuperset(given):
        return None
    get = given.get
    code, flag, opaque, version = get("code", 0), get("flag", 0), get("opaque", 0), get("version", 0)
    language, remark, fields = get("language", "JAVA"), get("remark"), get("extFields")
    if not type(code) is type(flag) is type(opaque) is type(version) is int:
        return None
    if not (_is_int32(code) and _is_int32(flag) and _is_int32(opaque) and _is_int32(version)):
        return None
    if type(language) is not str or (remark is not None and type(remark) is not str):
        return None
    if fields is not None:
        if type(fields) is not dict or len(fields) > MAX_HEADER_FIELDS:
            return None
        for value in fields.values():
            if type(value) is not str:
                return None
    return RemotingHeader(code, flag, _LANGUAGE_CODES.get(language.upper()), opaque, version, remark, fields)


def _is_int32(number: int) -> bool:
    return INT_MIN <= number <= INT_MAX


def _texts(fields: dict[str, object]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in fields.items():
        text = to_text(value)
        if text is not None:
            texts[key] = text
        else:
            texts.pop(key, None)
    return texts


def _language(given: dict[str, object]) -> int | None:
    """By name, ignoring case, or by ordinal. None for null and for an unknown name."""
    language = given.get("language", "JAVA")
    if type(language) is str:
        return _LANGUAGE_CODES.get(language.upper())
    if language is not None and (type(language) is not int or language not in _LANGUAGE_NAMES):
        raise MalformedJsonError(f"language {language!r:.40} is neither a name nor between 0 and {len(_LANGUAGE_NAMES) - 1}")
    return language


def decode_binary_header(data: Buffer) -> RemotingHeader:
    """A ROCKETMQ binary header. Raises FrameError."""
    try:
        code, language, version, opaque, flag, remark_bytes = _FIXED.unpack_from(data)
        position = _FIXED.size
        remark, position = _read_text(data, position, remark_bytes, len(data))
        (map_bytes,) = _INT.unpack_from(data, position)
        fields = _read_map(data, position + 4, map_bytes) if map_bytes > 0 else None
    except (struct_error, UnicodeDecodeError) as error:
        raise FrameError(f"binary header: {error}") from None
    known = language if language in _LANGUAGE_NAMES else None
    return RemotingHeader(code, flag, known, opaque, version, remark, fields, ROCKETMQ)


def _read_map(data: Buffer, position: int, map_bytes: int) -> dict[str, str]:
    if map_bytes > len(data) - position:
        raise FrameError(f"binary header: a map of {map_bytes} bytes where {len(data) - position} are left")
    fields: dict[str, str] = {}
    end = position + map_bytes
    for _ in range(MAX_HEADER_FIELDS):
        if position >= end:
            return fields
        key, position = _read_text(data, position + 2, _SHORT.unpack_from(data, position)[0], map_bytes)
        value, position = _read_text(data, position + 4, _INT.unpack_from(data, position)[0], map_bytes)
        if key is not None and value is not None:
            fields[key] = value
    raise FrameError(f"binary header: more than {MAX_HEADER_FIELDS} fields")


def _read_text(data: Buffer, position: int, text_bytes: int, limit: int) -> tuple[str | None, int]:
    """Text of a given length and the position after it; a length of 0 means null."""
    if text_bytes == 0:
        return None, position
    if not 0 < text_bytes <= limit or position + text_bytes > len(data):
        raise FrameError(f"binary header: a text of {text_bytes} bytes at {position}, where {len(data) - position} are left")
    end = position + text_bytes
    return str(data[position:end], "utf-8", "replace"), end


def encode_json_header(header: RemotingHeader) -> bytes:
    """A JSON header: members in alphabetical order without those that are None; ``{}`` for an empty map."""
    before, after = _json_around_opaque(header)
    return b"%b%d%b" % (before, header.opaque, after)


def _json_around_opaque(header: RemotingHeader) -> tuple[bytes, bytes]:
    fields = ""
    if header.ext_fields is not None:
        pairs = [f"{quote(key)}:{quote(value)}" for key, value in header.ext_fields.items()]
        fields = '"extFields":{' + ",".join(pairs) + "},"
    language = "" if header.language is None else f'"language":"{_LANGUAGE_NAMES[header.language]}",'
    remark = "" if header.remark is None else f'"remark":{quote(header.remark)},'
    before = f'{{"code":{header.code},{fields}"flag":{header.flag},{language}"opaque":'
    after = f',{remark}"serializeTypeCurrentRPC":"JSON","version":{header.version}}}'
    return before.encode(), after.encode()


def encode_binary_header(header: RemotingHeader) -> bytes:
    """A ROCKETMQ binary header. An empty map and empty texts are written like null. Raises FrameError if the code, the version
    or a key's length does not fit into its 16 bits."""
    before, after = _binary_around_opaque(header)
    return b"".join((before, _INT.pack(header.opaque), after))


def _binary_around_opaque(header: RemotingHeader) -> tuple[bytes, bytes]:
    remark = (header.remark or "").encode()
    entries = []
    try:
        for key, value in (header.ext_fields or {}).items():
            name, text = key.encode(), value.encode()
            entries.append(b"".join((_SHORT.pack(len(name)), name, _INT.pack(len(text)), text)))
        fields = b"".join(entries)
        language = LanguageCode.OTHER.value if header.language is None else header.language
        fixed = _FIXED.pack(header.code, language, header.version, 0, header.flag, len(remark))
    except struct_error as error:
        raise FrameError(f"the header does not fit into the binary form: {error}") from None
    return fixed[: BINARY_OPAQUE.start], b"".join((fixed[BINARY_OPAQUE.stop :], remark, _INT.pack(len(fields)), fields))


def answer_parts(
    code: int,
    remark: str | None = None,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
    serialize_type: int = JSON,
) -> AnswerParts:
    """The answer of a server without its opaque: flag 1, language JAVA, our version.

    ``ext_fields`` is None for a code without a response header class, and a map, possibly empty, for others.
    """
    header = RemotingHeader(code, RESPONSE_FLAG, LanguageCode.JAVA.value, 0, SERVER_VERSION, remark, ext_fields, serialize_type)
    around = _json_around_opaque(header) if serialize_type == JSON else _binary_around_opaque(header)
    return AnswerParts(serialize_type, *around, body)


def answer_frame(parts: AnswerParts, opaque: bytes) -> bytes:
    """One whole frame of an answer. ``opaque`` as the header carries it: decimal text in JSON, four bytes in binary."""
    serialize_type, before, after, body = parts
    header_bytes = len(before) + len(opaque) + len(after)
    return b"".join((frame_prefix(header_bytes, len(body), serialize_type), before, opaque, after, body))


def opaque_bytes(opaque: int, serialize_type: int) -> bytes:
    """``opaque`` as a header of this type carries it."""
    return b"%d" % opaque if serialize_type == JSON else _INT.pack(opaque)


def command_frame(header: RemotingHeader, body: bytes = b"") -> bytes:
    """One whole frame of a request or a response."""
    return frame(encode_header(header), body, header.serialize_type)


def opaque_is_certain(before: bytes, after: bytes) -> bool:
    """Whether a number between these two parts of a JSON header is its opaque and nothing else.

    Two different numbers put there must each be read as the opaque and must leave everything else equal. Then the same is true
    for every int32 in fastjson's form: an optional minus sign and digits, without leading zeros.
    """
    try:
        first = decode_json_header(b"%b%d%b" % (before, 7, after))
        second = decode_json_header(b"%b%d%b" % (before, -1234567890, after))
    except FrameError:
        return False
    return first.opaque == 7 and second.opaque == -1234567890 and first._replace(opaque=0) == second._replace(opaque=0)
