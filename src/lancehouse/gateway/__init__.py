"""The Lance REST Namespace protocol in front of any Lance namespace, independent of HTTP."""
