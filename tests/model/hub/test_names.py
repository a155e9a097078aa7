"""A name means the file that llama.cpp would take, or one line says what there is."""

from __future__ import annotations

import pytest

from spac.errors import InputError
from spac.model.hub.names import Name, choose, labels, models_in

FILES = [
    "README.md", "imatrix_unsloth.gguf", "m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf",
    "m-IQ4_XS.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q2_K_XL.gguf", "mmproj-F16.gguf",
    "mtp-m-Q8_0.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("a/m", "m-Q4_K_M.gguf"),
        ("a/m:q8_0", "m-Q8_0.gguf"),
        ("a/m:BF16", "m-BF16-00001-of-00002.gguf"),
        ("a/m:UD-Q2_K_XL", "m-UD-Q2_K_XL.gguf"),
        ("a/m:q2_k_xl", "m-UD-Q2_K_XL.gguf"),
    ],
)
def test_a_quantization(name, first):
    assert choose(Name.parse(name), FILES).files[0] == first


def test_the_defaults_are_llama_cpp_s():
    def chosen(*files):
        return choose(Name("a/m"), files).files[0]

    assert chosen("x-Q2_K.gguf", "x-Q8_0.gguf") == "x-Q8_0.gguf"
    assert chosen("x-F16.gguf", "x-Q2_K.gguf") == "x-F16.gguf"
    assert chosen("BF16/x-00001-of-00001.gguf") == "BF16/x-00001-of-00001.gguf"


def test_all_parts_and_no_projectors():
    models = models_in(FILES)
    assert labels(models) == ["BF16", "IQ4_XS", "Q4_K_M", "Q8_0", "Q2_K_XL"]
    assert models[0].files == ("m-BF16-00001-of-00002.gguf", "m-BF16-00002-of-00002.gguf")
    assert choose(Name("a/m"), FILES, "m-BF16-00002-of-00002.gguf") == models[0]


@pytest.mark.parametrize(
    ("name", "file", "files", "said"),
    [
        ("a/m:Q9", "", FILES, "a/m has no quantization 'Q9': it has BF16, IQ4_XS, Q4_K_M, Q8_0, Q2_K_XL"),
        ("a/m", "x.gguf", FILES[:6], "no model file 'x.gguf': it has m-BF16-00001-of-00002.gguf, m-IQ4_XS"),
        ("a/m", "", ["README.md", "mmproj-F16.gguf"], "no GGUF file of a model"),
        ("a/m:Q4_0", "", ["x-Q4_0.gguf", "y-Q4_0.gguf"], "several models in Q4_0: name one with --hf-file"),
        ("a/m", "", FILES[2:3], "1 of 2 parts of m-BF16"),
        ("a/m:Z", "", [f"x-Q{n}.gguf" for n in range(14)], "Q10, Q11 and 2 more"),
    ],
)  # fmt: skip
def test_one_line_says_what_there_is(name, file, files, said):
    with pytest.raises(InputError) as refused:
        choose(Name.parse(name), files, file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "a", "a/b/c", "a/b:", "../b", "a/b:c:d", "https://a/b", "a b/c"])
def test_other_forms_are_refused(text):
    with pytest.raises(InputError, match="is not OWNER/REPO"):
        Name.parse(text)
