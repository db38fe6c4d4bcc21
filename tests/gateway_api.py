"""The fields of the Gateway API's kinds that the manifests use, as JSON schemas in which other fields are mistakes.

Written by hand after the reference of version v1 (release 1.4, https://gateway-api.sigs.k8s.io/reference/spec/): the
published definitions are not at hand where tests run. Fields that no manifest here needs are left out on purpose.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_DOMAIN = rf"{_LABEL}(\.{_LABEL})*"
NAME: Schema = {"type": "string", "minLength": 1, "maxLength": 253}
SECTION: Schema = {**NAME, "pattern": rf"^{_DOMAIN}$"}
HOST: Schema = {**NAME, "pattern": rf"^{_DOMAIN}$"}
HOST_OR_WILDCARD: Schema = {**NAME, "pattern": rf"^(\*\.)?{_DOMAIN}$"}
GROUP: Schema = {"type": "string", "maxLength": 253, "pattern": rf"^$|^{_DOMAIN}$"}
KIND: Schema = {"type": "string", "minLength": 1, "maxLength": 63, "pattern": r"^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}


def closed(required: list[str], **properties: Schema) -> Schema:
    """An object of these properties and no others."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def some(items: Schema, least: int, most: int) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _kind(kind: str, spec: Schema) -> Schema:
    return closed(
        ["apiVersion", "kind", "metadata", "spec"], apiVersion={"const": "gateway.networking.k8s.io/v1"},
        kind={"const": kind}, metadata={"type": "object", "required": ["name", "namespace"]}, spec=spec,
    )


_TLS = closed(
    [], mode={"enum": ["Terminate", "Passthrough"]}, options={"type": "object"},
    certificateRefs=some(closed(["name"], group=GROUP, kind=KIND, name=NAME, namespace=NAME), 1, 64),
)
_LISTENER = closed(
    ["name", "port", "protocol"], name=SECTION, hostname=HOST_OR_WILDCARD, port=PORT,
    protocol={"enum": ["HTTP", "HTTPS", "TLS", "TCP", "UDP"]}, tls=_TLS,
    allowedRoutes=closed([], namespaces=closed([], **{
        "from": {"enum": ["All", "Selector", "Same", "None"]}, "selector": {"type": "object"},
    }), kinds=some(closed(["kind"], group=GROUP, kind=KIND), 0, 8)),
)
_METHOD = closed(
    [], type={"enum": ["Exact", "RegularExpression"]}, service={"type": "string", "pattern": r"^[\w.]+$"},
    method={"type": "string", "pattern": r"^\w+$"},
)
_RULE = closed(
    [], name=SECTION, matches=some(closed([], method=_METHOD, headers={"type": "array"}), 0, 64),
    filters={"type": "array"},
    backendRefs=some(closed(["name", "port"], group=GROUP, kind=KIND, name=NAME, namespace=NAME, port=PORT,
                            weight={"type": "integer", "minimum": 0}, filters={"type": "array"}), 0, 16),
)
_CA = closed(["group", "kind", "name"], group=GROUP, kind=KIND, name=NAME)

SCHEMAS: dict[str, Schema] = {
    "Gateway": _kind("Gateway", closed(
        ["gatewayClassName", "listeners"], gatewayClassName=NAME, listeners=some(_LISTENER, 1, 64),
        addresses={"type": "array"}, infrastructure={"type": "object"},
    )),
    "GRPCRoute": _kind("GRPCRoute", closed(
        [], hostnames=some(HOST_OR_WILDCARD, 0, 16), rules=some(_RULE, 0, 16),
        parentRefs=some(closed(["name"], group=GROUP, kind=KIND, namespace=NAME, name=NAME, sectionName=SECTION,
                               port=PORT), 0, 32),
    )),
    "BackendTLSPolicy": _kind("BackendTLSPolicy", closed(
        ["targetRefs", "validation"], options={"type": "object", "maxProperties": 16},
        targetRefs=some(
            closed(["group", "kind", "name"], group=GROUP, kind=KIND, name=NAME, sectionName=SECTION), 1, 16
        ),
        validation={
            **closed(["hostname"], hostname=HOST, caCertificateRefs=some(_CA, 1, 8), subjectAltNames={"type": "array"},
                     wellKnownCACertificates={"enum": ["System"]}),
            "oneOf": [{"required": ["caCertificateRefs"]}, {"required": ["wellKnownCACertificates"]}],
        },
    )),
}
