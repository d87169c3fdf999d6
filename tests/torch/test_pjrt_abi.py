"""src/pjrt/abi.h against an independent description of the PJRT C ABI: the package pypjrt."""

import ctypes
import pathlib
import re
import shutil
import subprocess

import pytest

abi = pytest.importorskip("pypjrt._abi.pjrt_0_114", reason="pypjrt is not installed")
CC = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
pytestmark = pytest.mark.skipif(CC is None, reason="there is no C compiler")

ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = (ROOT / "src/pjrt/abi.h").read_text()

# Our names where they differ: (struct, ours) -> theirs. Unions are named in C and anonymous there.
OTHER_NAMES = {"ext": "extension_start", "type_": "type"}
UNIONS = {("PJRT_NamedValue", "u"), ("PJRT_Buffer_MemoryLayout", "u")}
# Structs of ours that are not compared field by field, each with its reason.
NOT_COMPARED = {"PJRT_Api": "the table; its slots are compared one by one"}


def our_structs():
    """{struct: [field, ...]} as written in abi.h, unions as one field."""
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    text = re.sub(r"union \{.*?\} u;", "int u;", text, flags=re.S)
    text = re.sub(r"PJRT_STAT\((\w+)\)", r"int64_t \1; bool \1_is_set", text)
    text = text.replace("PJRT_HEAD;", "size_t struct_size; void *ext;")
    found = {}
    for body, name in re.findall(r"typedef struct \{([^{}]*)\} (\w+);", text):
        fields = []
        for decl in filter(None, (d.strip() for d in body.split(";"))):
            pointer = re.search(r"\(\*(\w+)(\[\])?\)", decl)
            if pointer:
                fields.append(pointer[1])
                continue
            fields += [re.search(r"(\w+)(\[\])?$", part.strip())[1] for part in decl.split(",")]
        found[name] = fields
    return found


STRUCTS = our_structs()
CALLS = re.findall(r"X\((\d+), (PJRT_\w+), (\w+), [01]\)", HEADER)


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    """{"struct.field": (offset, size)} and {"struct": size}, as the compiler sees them."""
    folder = tmp_path_factory.mktemp("abi")
    lines = ['#include "pjrt/abi.h"', "#include <stdio.h>", "int main(void) {"]
    for struct, fields in STRUCTS.items():
        lines.append(f'printf("{struct} %zu 0\\n", sizeof({struct}));')
        lines += [
            f'printf("{struct}.{f} %zu %zu\\n", offsetof({struct}, {f}), sizeof((({struct} *)0)->{f}));'
            for f in fields
            if f != "slots"
        ]
    for _, call, _ in CALLS + [("0", "PJRT_Error_Destroy", ""), ("1", "PJRT_Error_Message", "")]:
        lines.append(f'printf("SIZE.{call} %d 0\\n", (int){call}_SIZE);')
    lines.append('printf("TABLE %zu 0\\n", offsetof(PJRT_Api, slots)); return 0; }')
    (folder / "abi.c").write_text("\n".join(lines))
    subprocess.run([CC, "-std=gnu11", "-I", ROOT / "src", folder / "abi.c", "-o", folder / "abi"], check=True)
    out = subprocess.run([folder / "abi"], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in out.splitlines()}


def test_the_header_was_read():
    assert len(STRUCTS) > 35
    assert len(CALLS) == HEADER.count("  X(")
    for _, call, _ in CALLS:
        assert f"{call}_Args" in STRUCTS


@pytest.mark.parametrize("struct", sorted(set(STRUCTS) - set(NOT_COMPARED)))
def test_struct(ours, struct):
    theirs = getattr(abi, struct)
    names = [f[0] for f in theirs._fields_]
    fields = STRUCTS[struct]
    # Every field, in the same order, at the same place: a struct that stops early would have the wrong size.
    assert len(fields) == len(names)
    for mine, other in zip(fields, names, strict=True):
        if (struct, mine) not in UNIONS:
            assert OTHER_NAMES.get(mine, mine) == other
        field = getattr(theirs, other)
        assert ours[f"{struct}.{mine}"] == (field.offset, field.size), mine
    assert ours[struct][0] == ctypes.sizeof(theirs)


@pytest.mark.parametrize("slot,call,last", CALLS)
def test_slot_and_struct_size(ours, slot, call, last):
    assert abi.SLOT[call] == int(slot)
    assert ours[f"SIZE.{call}"][0] == getattr(abi, f"{call}_Args_STRUCT_SIZE")
    if call != "PJRT_Plugin_Initialize":
        assert STRUCTS[f"{call}_Args"][-1] == last


def test_the_two_calls_that_return_nothing(ours):
    for slot, call in enumerate(["PJRT_Error_Destroy", "PJRT_Error_Message"]):
        assert abi.SLOT[call] == slot
        assert int(re.search(rf"PJRT_SLOT_{call[5:]} = (\d+)", HEADER)[1]) == slot
        assert ours[f"SIZE.{call}"][0] == getattr(abi, f"{call}_Args_STRUCT_SIZE")


def test_table_starts_where_theirs_does(ours):
    assert ours["TABLE"][0] == abi.VTABLE_OFFSET


@pytest.mark.parametrize(
    "ours_name,theirs",
    [(f"PJRT_CODE_{n}", f"PJRT_Error_Code_{n}") for n in re.findall(r"PJRT_CODE_(\w+) =", HEADER)]
    + [
        ("PJRT_LAYOUT_TILED", "PJRT_Buffer_MemoryLayout_Type_Tiled"),
        ("PJRT_LAYOUT_STRIDES", "PJRT_Buffer_MemoryLayout_Type_Strides"),
        ("PJRT_HOST_IMMUTABLE_ONLY_DURING_CALL", "PJRT_HostBufferSemantics_kImmutableOnlyDuringCall"),
    ],
)
def test_numbers(ours_name, theirs):
    assert int(re.search(rf"{ours_name} = (\d+)", HEADER)[1]) == getattr(abi, theirs)


def test_value_types():
    order = re.search(r"typedef enum \{\s+(PJRT_VALUE_[^}]*?)\s+\}", HEADER)[1].replace("\n", " ").split(",")
    theirs = ["kString", "kInt64", "kInt64List", "kFloat", "kBool"]
    order = [name.strip() for name in order]
    assert len(order) == len(theirs)
    for i, (mine, other) in enumerate(zip(order, theirs, strict=True)):
        assert mine.replace("PJRT_VALUE_", "").replace("_", "") == other[1:].upper()
        assert getattr(abi, f"PJRT_NamedValue_{other}") == i


def test_element_types():
    """The PJRT column of TPU_DTYPES in tpu.h."""
    rows = re.findall(r'X\(\d+, (\w+), "\w+", "[^"]*", \d+, (\d+), ', (ROOT / "include/tpu.h").read_text())
    assert len(rows) >= 20
    rename = {"BOOL": "PRED", "I8": "S8", "I16": "S16", "I32": "S32", "I64": "S64"}
    for name, number in rows:
        assert getattr(abi, "PJRT_Buffer_Type_" + rename.get(name, name)) == int(number), name


def test_compile_options_are_the_fields_that_we_mean():
    fields = abi.PROTO_FIELDS
    options, build = fields["CompileOptionsProto"], fields["ExecutableBuildOptionsProto"]
    text = re.search(r'portable_options\[\] = "(.*)"', (ROOT / "src/pjrt/options.c").read_text())[1]
    varint, nested = 0, 2
    inner = bytes([build["num_replicas"] << 3 | varint, 1, build["num_partitions"] << 3 | varint, 1])
    outer = bytes([options["executable_build_options"] << 3 | nested, len(inner)]) + inner
    outer += bytes([options["compile_portable_executable"] << 3 | varint, 1])
    assert bytes(int(h, 16) for h in re.findall(r"\\x(..)", text)) == outer
