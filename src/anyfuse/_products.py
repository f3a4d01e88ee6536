"""The Ascend products: free of torch."""

from __future__ import annotations

ANY = "any"

#: Every product with the name it is sold under.
PRODUCTS = {
    ANY: "no product: everything that makes mathematical sense",
    "Ascend910B": "Atlas A2",
    "Ascend910_93": "Atlas A3",
    "Ascend950": "Ascend 950PR and 950DT",
    "Ascend310P": "Atlas inference series",
    "KirinX90": "Kirin X90",
    "Kirin9030": "Kirin 9030",
}
