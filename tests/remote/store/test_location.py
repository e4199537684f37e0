"""Store URLs: what each form means, what the environment adds, and what is wrong with the others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.store.location import BadStoreUrl, FileLocation, S3Location, parse_store_url


def s3(url: str, **environ: str) -> S3Location:
    location = parse_store_url(url, environ)
    assert isinstance(location, S3Location)
    return location


def test_a_directory() -> None:
    assert parse_store_url("file:///var/store", {}) == FileLocation("/var/store")


def test_a_bucket_with_all_that_can_be_said() -> None:
    location = s3("s3://my.bucket/a/b/?endpoint=http://minio:9000&region=eu-central-1", AWS_REGION="other")
    assert location == S3Location(
        bucket="my.bucket",
        prefix="a/b/",
        scheme="http",
        host="minio:9000",
        region="eu-central-1",
        in_host=False,
    )
    assert str(location) == "s3://my.bucket/a/b/ at http://minio:9000"


def test_a_bucket_at_amazon_is_part_of_the_host() -> None:
    location = s3("s3://bucket", AWS_DEFAULT_REGION="eu-west-1")
    assert (location.host, location.prefix) == ("bucket.s3.eu-west-1.amazonaws.com", "")
    assert (location.scheme, location.in_host) == ("https", True)
    # the certificate covers one name below the region
    assert s3("s3://dotted.bucket").host == "s3.us-east-1.amazonaws.com"


def test_the_environment_fills_in_what_the_url_leaves_open() -> None:
    assert s3("s3://bucket", AWS_ENDPOINT_URL="https://a").host == "a"
    assert s3("s3://bucket", AWS_ENDPOINT_URL="https://a", AWS_ENDPOINT_URL_S3="https://b").host == "b"
    assert s3("s3://bucket", AWS_REGION="r-1", AWS_DEFAULT_REGION="r-2").region == "r-1"


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [
        ("http://h:80", "h"),
        ("https://h:443/", "h"),
        ("http://h:443", "h:443"),
        ("http://[::1]:9000", "[::1]:9000"),
    ],
)
def test_the_host_is_spelt_as_the_header_wants_it(endpoint: str, host: str) -> None:
    assert s3(f"s3://bucket?endpoint={endpoint}").host == host


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "file:///DIR or s3://BUCKET"),
        ("/var/store", "file:///DIR or s3://BUCKET"),
        ("gopher://x", "file:///DIR or s3://BUCKET"),
        ("file://host/dir", "file:///DIR"),
        ("file://", "file:///DIR"),
        ("s3://", "not a bucket name"),
        ("s3:///prefix", "not a bucket name"),
        ("s3://Bucket", "not a bucket name"),
        ("s3://b", "not a bucket name"),
        ("s3://bucket?endpoint=minio:9000", "not an endpoint"),
        ("s3://bucket?endpoint=http://minio:9000/path", "not an endpoint"),
        ("s3://bucket?endpoint=http://me:pw@minio:9000", "not an endpoint"),
        ("s3://bucket?endpoint=http://minio:port", "Port"),
        ("s3://bucket?region=a b", "not a region"),
        ("s3://bucket?path_style=true", "unknown option path_style"),
        ("s3://bucket?path_style", "bad query field"),
        ("s3://bucket/a//b", "not an object key"),
        ("s3://bucket/../b", "not an object key"),
        ("s3://[bucket", "Invalid IPv6"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadStoreUrl) as caught:
        parse_store_url(url, {})
    assert says in str(caught.value)
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)


def test_a_secret_in_the_url_is_neither_taken_nor_repeated() -> None:
    with pytest.raises(BadStoreUrl) as caught:
        parse_store_url("s3://AKID:secret@bucket", {})
    assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    assert ":secret" not in str(caught.value)


@given(st.text(max_size=60) | st.text(max_size=40).map("s3://bucket".__add__))
def test_any_text_is_a_location_or_a_complaint(url: str) -> None:
    try:
        parse_store_url(url, {})
    except BadStoreUrl:
        pass


@pytest.mark.parametrize(
    ("url", "is_plain"),
    [
        ("s3://bucket/p?region=eu-west-1", True),
        ("s3://dotted.bucket", True),
        ("s3://bucket?endpoint=https://s3.eu-west-1.amazonaws.com", True),
        ("s3://bucket?endpoint=http://127.0.0.1:9000", False),
        ("s3://bucket--use1-az4--x-s3", False),
    ],
)
def test_s3_itself_is_told_from_what_speaks_like_it(url: str, is_plain: bool) -> None:
    assert s3(url).is_plain_s3 is is_plain
