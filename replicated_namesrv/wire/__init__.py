"""RocketMQ's remoting protocol as pure functions: bytes on one side, values of ``model`` on the other.

No IO, no clock, no randomness and no knowledge of routes. A function takes bytes and returns values, or raises ``FrameError``
(close the connection) or ``BodyError`` (answer code 1). No bytes cause another exception, and the cost is bounded.

========================  =========================================================================================
``codes``                 request and response codes, languages, versions, flag bits
``frame``                 where a frame ends in a read buffer, and building one
``header``                headers in both encodings, prepared answers, when two requests differ only in their opaque
``fastjson``              reader of the JSON dialect of fastjson 1, and what Java's types make of its values
``fastjson_writer``       the two ways in which RocketMQ writes JSON, and Java's hash order
``bodies``                all bodies except registrations: routes, cluster info, lists, tables, versions
``registration_body``     decoding of ``REGISTER_BROKER`` (103), fast, and in slices for large ones
``properties``            java.util.Properties text
``proxy_protocol``        PROXY protocol versions 1 and 2
========================  =========================================================================================
"""
