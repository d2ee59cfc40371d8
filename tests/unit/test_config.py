"""The options of checksums and modes: what a configuration may say, and what it is told otherwise."""

from __future__ import annotations

import pytest

from kvfs.config import TierConfig


def _config(**options: object) -> TierConfig:
    return TierConfig.from_options({"root_dir": "kv", **options})


def test_defaults_seal_and_are_for_the_owner_alone() -> None:
    config = _config()
    assert (config.checksum, config.file_mode, config.dir_mode) == ("auto", 0o600, 0o700)


@pytest.mark.parametrize(
    ("options", "checksum"),
    [
        ({"checksum": "auto"}, "auto"),
        ({"checksum": "require"}, "require"),
        ({"checksum": "off"}, "off"),
        ({"checksum_blocks": True}, "auto"),
        ({"checksum_blocks": False}, "off"),
        ({"checksum_blocks": True, "checksum": "auto"}, "auto"),
        ({"checksum_blocks": True, "checksum": "require"}, "require"),
        ({"checksum_blocks": False, "checksum": "off"}, "off"),
    ],
    ids=str,
)
def test_checksum_and_the_alias_agree(options: dict[str, object], checksum: str) -> None:
    given = dict(options)
    assert _config(**options).checksum == checksum
    assert options == given


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        pytest.param(
            {"checksum": "on"},
            ValueError,
            "'checksum' must be one of auto, require, off, got 'on'",
            id="value",
        ),
        pytest.param({"checksum": True}, ValueError, "'checksum' must be one of.*got True", id="bool"),
        pytest.param({"checksum": None}, ValueError, "'checksum' must be one of.*got None", id="none"),
        pytest.param({"checksum": ["auto"]}, ValueError, "'checksum' must be one of", id="list"),
        pytest.param(
            {"checksum_blocks": "true"}, TypeError, "'checksum_blocks' must be true or false", id="alias-text"
        ),
        pytest.param(
            {"checksum_blocks": None}, TypeError, "must be true or false, got None", id="alias-none"
        ),
        pytest.param(
            {"checksum_blocks": True, "checksum": "off"},
            ValueError,
            "'checksum_blocks' is true but 'checksum' is 'off'; leave one of them out",
            id="true-off",
        ),
        pytest.param(
            {"checksum_blocks": False, "checksum": "auto"},
            ValueError,
            "'checksum_blocks' is false but 'checksum' is 'auto'",
            id="false-auto",
        ),
        pytest.param(
            {"checksum_blocks": False, "checksum": "require"},
            ValueError,
            "'checksum_blocks' is false but 'checksum' is 'require'",
            id="false-require",
        ),
        pytest.param(
            {"checksum_blocks": True, "checksum": "on"},
            ValueError,
            "'checksum' must be one of",
            id="alias-value",
        ),
        pytest.param({"checksums": "off"}, ValueError, "did you mean 'checksum'", id="typo"),
        pytest.param({"checksum_block": True}, ValueError, "did you mean 'checksum_blocks'", id="alias-typo"),
    ],
)
def test_wrong_checksum_option_is_refused_with_its_name_and_value(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _config(**options)


@pytest.mark.parametrize(
    ("text", "mode"),
    [("0600", 0o600), ("600", 0o600), ("0o640", 0o640), ("0777", 0o777), ("00644", 0o644)],
)
def test_mode_is_a_string_of_octal_digits(text: str, mode: int) -> None:
    assert _config(file_mode=text).file_mode == mode


def test_mode_of_directories_is_read_in_the_same_way() -> None:
    assert _config(dir_mode="0750").dir_mode == 0o750


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        # The likely mistakes: 640 is 01200, and 444 would even be a mode, 0674.
        pytest.param(
            {"file_mode": 640}, TypeError, r'a string of octal digits such as "0640", got 640', id="decimal"
        ),
        pytest.param({"file_mode": 444}, TypeError, "octal digits.*got 444", id="decimal-that-is-a-mode"),
        pytest.param({"file_mode": 0o640}, TypeError, "octal digits.*got 416", id="octal-number"),
        pytest.param({"dir_mode": 750}, TypeError, "'dir_mode' must be a string of octal", id="dir-decimal"),
        pytest.param({"file_mode": None}, TypeError, "'file_mode'.*got None", id="none"),
        pytest.param({"file_mode": True}, TypeError, "'file_mode'.*got True", id="bool"),
        pytest.param({"file_mode": ""}, ValueError, "'file_mode'.*got ''", id="empty"),
        pytest.param({"file_mode": "06a0"}, ValueError, "'file_mode'.*got '06a0'", id="hexadecimal"),
        pytest.param({"file_mode": "0680"}, ValueError, "'file_mode'.*got '0680'", id="eight"),
        pytest.param({"file_mode": "60"}, ValueError, "'file_mode'.*got '60'", id="two-digits"),
        pytest.param({"file_mode": "1600"}, ValueError, "'file_mode'.*got '1600'", id="sticky"),
        pytest.param({"file_mode": "-600"}, ValueError, "'file_mode'.*got '-600'", id="negative"),
        pytest.param({"file_mode": "rw-------"}, ValueError, "'file_mode'.*octal", id="letters"),
        pytest.param({"file_mode": "u=rw"}, ValueError, "'file_mode'.*octal", id="symbolic"),
        pytest.param({"file_mode": "0440"}, ValueError, "owner's bits 0600, got 0440", id="not-writable"),
        pytest.param({"file_mode": "0200"}, ValueError, "owner's bits 0600, got 0200", id="not-readable"),
        pytest.param({"dir_mode": "0600"}, ValueError, "owner's bits 0700, got 0600", id="not-searchable"),
    ],
)
def test_wrong_mode_is_refused_with_its_name_and_value(
    options: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _config(**options)


def test_config_in_python_takes_numbers() -> None:
    config = TierConfig("kv", file_mode=0o640, dir_mode=0o750)
    assert (config.file_mode, config.dir_mode) == (0o640, 0o750)
    with pytest.raises(ValueError, match=r"'file_mode' must be at most 0777.*got 01200"):
        TierConfig("kv", file_mode=640)
    with pytest.raises(TypeError, match="'dir_mode' must be permission bits, got '0750'"):
        TierConfig("kv", dir_mode="0750")  # type: ignore[arg-type]
