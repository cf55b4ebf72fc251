// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Inclusion} from "./Inclusion.sol";
import {allow} from "./Refusal.sol";
import {COUNT_MAX, Named, RecordForm, TensorForm} from "./Types.sol";

/// Canonical JSON (RFC 8785) of operator records and tensor headers, and the digests over it.
library Canonical {
    uint256 private constant NAME_MAX = 1024;
    uint256 private constant OPERATOR_MAX = 128;
    bytes16 private constant DIGITS = "0123456789abcdef";

    /// The leaf hash of an operator record.
    function leafOf(RecordForm calldata record) internal pure returns (bytes32) {
        allow(record.node <= COUNT_MAX && _isOperator(bytes(record.operator)), "malformed");
        allow(record.inputs.length <= 16 && record.outputs.length <= 4, "malformed");
        bytes memory inputs = bytes.concat(hex"00", '{"inputs":', _object(record.inputs), ',"kind":"operator","node":');
        bytes memory named =
            bytes.concat(_decimal(record.node), ',"operator":"', bytes(record.operator), '","outputs":');
        return sha256(bytes.concat(inputs, named, _object(record.outputs), "}"));
    }

    /// The digest of a tensor of one chunk: the tree over its header and its bytes, under the domain of tensors.
    function digestOf(TensorForm calldata tensor) internal view returns (bytes32) {
        bool isFloat32 = tensor.itemBytes == 4;
        allow(isFloat32 || tensor.itemBytes == 8, "malformed");
        allow(tensor.shape.length <= 8 && tensor.data.length <= 4096, "malformed");
        (bytes memory shape, uint256 count) = _shape(tensor.shape);
        allow(count > 0 && count * tensor.itemBytes == tensor.data.length, "evidence");
        bytes memory dtype = bytes(isFloat32 ? "F32" : "F64");
        bytes memory header = bytes.concat(hex"00", '{"chunk_bytes":1048576,"dtype":"', dtype, '","shape":', shape, "}");
        bytes32 root = Inclusion.nodeHash(sha256(header), sha256(bytes.concat(hex"00", tensor.data)));
        return sha256(bytes.concat("tallystick/tensor/v1\n", '{"root":"', _hex(root), '","size":2}'));
    }

    /// An object from names to digests, its keys sorted; refused where a name stands twice or needs escaping.
    function _object(Named[] calldata entries) private pure returns (bytes memory text) {
        uint256[] memory order = _sorted(entries);
        for (uint256 i = 0; i < order.length; i++) {
            Named calldata entry = entries[order[i]];
            bytes memory separator = i == 0 ? bytes("{") : bytes(",");
            text = bytes.concat(text, separator, '"', bytes(entry.name), '":"sha256:', _hex(entry.digest), '"');
        }
        return order.length == 0 ? bytes("{}") : bytes.concat(text, "}");
    }

    /// The places of the entries in the order of their names, by insertion.
    function _sorted(Named[] calldata entries) private pure returns (uint256[] memory order) {
        order = new uint256[](entries.length);
        for (uint256 i = 0; i < order.length; i++) {
            _isPlain(bytes(entries[i].name));
            uint256 j = i;
            for (; j > 0 && !_isBefore(bytes(entries[order[j - 1]].name), bytes(entries[i].name)); j--) {
                order[j] = order[j - 1];
            }
            order[j] = i;
        }
    }

    /// Whether one name sorts before another; refused where they are equal.
    function _isBefore(bytes calldata left, bytes calldata right) private pure returns (bool) {
        uint256 shorter = left.length < right.length ? left.length : right.length;
        for (uint256 i = 0; i < shorter; i++) {
            if (left[i] != right[i]) return left[i] < right[i];
        }
        allow(left.length != right.length, "evidence");
        return left.length < right.length;
    }

    /// Printable ASCII without quote and backslash: nothing that JSON would write in another way.
    function _isPlain(bytes calldata name) private pure {
        allow(name.length > 0 && name.length <= NAME_MAX, "evidence");
        for (uint256 i = 0; i < name.length; i++) {
            bytes1 each = name[i];
            allow(each >= 0x20 && each <= 0x7e && each != '"' && each != "\\", "evidence");
        }
    }

    /// Words of letters, digits and underscores, joined by points; the first of lower-case letters alone.
    function _isOperator(bytes calldata name) private pure returns (bool) {
        if (name.length > OPERATOR_MAX) return false;
        uint256 points = 0;
        bool isAfterPoint = true;
        for (uint256 i = 0; i < name.length; i++) {
            bytes1 each = name[i];
            bool isLower = each >= "a" && each <= "z";
            bool isWord = isLower || (each >= "A" && each <= "Z") || (each >= "0" && each <= "9") || each == "_";
            if (each == "." ? isAfterPoint : points == 0 ? !isLower : !isWord) return false;
            isAfterPoint = each == ".";
            if (isAfterPoint) points++;
        }
        return points > 0 && !isAfterPoint;
    }

    /// A list of numbers, and their product; no side of a tensor of 4,096 bytes is longer.
    function _shape(uint64[] calldata sides) private pure returns (bytes memory text, uint256 count) {
        count = 1;
        for (uint256 i = 0; i < sides.length; i++) {
            allow(sides[i] <= 4096, "evidence");
            count *= sides[i];
            text = i == 0 ? _decimal(sides[i]) : bytes.concat(text, ",", _decimal(sides[i]));
        }
        text = bytes.concat("[", text, "]");
    }

    function _decimal(uint256 value) private pure returns (bytes memory text) {
        uint256 length = 1;
        for (uint256 rest = value / 10; rest > 0; rest /= 10) {
            length++;
        }
        text = new bytes(length);
        for (; length > 0; value /= 10) {
            text[--length] = bytes1(uint8(48 + value % 10));
        }
    }

    function _hex(bytes32 word) private pure returns (bytes memory text) {
        text = new bytes(64);
        for (uint256 i = 0; i < 32; i++) {
            text[2 * i] = DIGITS[uint8(word[i]) >> 4];
            text[2 * i + 1] = DIGITS[uint8(word[i]) & 15];
        }
    }
}
