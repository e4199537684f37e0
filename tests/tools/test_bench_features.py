"""The features' cost table, without any broker."""

from tools.versus import features


def test_each_variant_is_told_with_its_ratio_to_the_first() -> None:
    first, second, third = (variant.name for variant in features.VARIANTS)
    assert features.markdown({"raw": {first: 4.0, second: 5.0, third: 6.0}}).splitlines() == [
        f"| row | {first} | {second} | {third} |",
        "| --- | --- | --- | --- |",
        "| raw | 4.00 µs CPU (1.00) | 5.00 µs CPU (1.25) | 6.00 µs CPU (1.50) |",
    ]
