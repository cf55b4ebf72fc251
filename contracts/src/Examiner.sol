// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {Canonical} from "./Canonical.sol";
import {Floats} from "./Floats.sol";
import {Inclusion} from "./Inclusion.sol";
import {allow} from "./Refusal.sol";
import {COUNT_MAX, Evidence, Named, Offence, RecordForm, TensorForm, Writer} from "./Types.sol";

/// Checks of one operator that a contract can make itself: they convict the prover, and never clear it.
///
///   edge     the operator reads a value that its writer gave with other bytes, or that comes later
///   cast     a number was converted to F32 or F64 and is further than two units in the last place from itself
///   product  a product of two F32 numbers is further than two units in the last place from the exact one
///
/// Numbers are compared in integers. Subnormal numbers, infinities and NaN are left to a committee. It has no state and
/// is a contract of its own because code on the chain has a limit in size (EIP-170).
contract Examiner {
    bytes32 private constant CAST = keccak256("aten._to_copy.default");
    bytes32 private constant PRODUCT = keccak256("aten.mul.Tensor");

    /// Refuse with code `evidence` unless it shows that the opened leaf, number `place` of its tree, is not honest.
    function convict(bytes32 leaf, bytes32 root, uint256 size, uint256 place, Evidence calldata evidence)
        external
        view
    {
        _isToThePoint(evidence);
        _require(Canonical.leafOf(evidence.record) == leaf);
        if (evidence.offence == Offence.Edge) _require(_isBrokenEdge(root, size, place, evidence));
        if (evidence.offence == Offence.Cast) _require(_isWrongCast(evidence));
        if (evidence.offence == Offence.Product) _require(_isWrongProduct(evidence));
    }

    /// Nothing comes along that is not asked for: what the log tells has been looked at, all of it.
    function _isToThePoint(Evidence calldata evidence) private pure {
        bool isEdge = evidence.offence == Offence.Edge;
        allow(evidence.element <= COUNT_MAX, "malformed");
        _require(evidence.writers.length == (isEdge ? 1 : 0));
        _require(evidence.tensors.length == (isEdge ? 0 : evidence.offence == Offence.Cast ? 2 : 3));
    }

    function _isBrokenEdge(bytes32 root, uint256 size, uint256 place, Evidence calldata evidence)
        private
        view
        returns (bool)
    {
        Writer calldata writer = evidence.writers[0];
        bytes32 leaf = Canonical.leafOf(writer.record);
        _require(Inclusion.holds(writer.proof, leaf, writer.index, size, root));
        bool isLater = writer.index >= place;
        for (uint256 i = 0; i < writer.record.outputs.length; i++) {
            for (uint256 j = 0; j < evidence.record.inputs.length; j++) {
                (Named calldata given, Named calldata read) = (writer.record.outputs[i], evidence.record.inputs[j]);
                bool isSame = keccak256(bytes(given.name)) == keccak256(bytes(read.name));
                if (isSame && (isLater || given.digest != read.digest)) return true;
            }
        }
        return false;
    }

    function _isWrongCast(Evidence calldata evidence) private view returns (bool) {
        _require(keccak256(bytes(evidence.record.operator)) == CAST);
        _areTheValues(evidence, 1);
        Floats.Float memory source = Floats.read(evidence.tensors[0], evidence.element);
        Floats.Float memory result = Floats.read(evidence.tensors[1], evidence.element);
        return Floats.isFar(source, result, evidence.tensors[1].itemBytes);
    }

    function _isWrongProduct(Evidence calldata evidence) private view returns (bool) {
        _require(keccak256(bytes(evidence.record.operator)) == PRODUCT);
        for (uint256 i = 0; i < 3; i++) {
            _require(evidence.tensors[i].itemBytes == 4);
        }
        _areTheValues(evidence, 2);
        Floats.Float memory left = Floats.read(evidence.tensors[0], _place(evidence, 0));
        Floats.Float memory right = Floats.read(evidence.tensors[1], _place(evidence, 1));
        Floats.Float memory result = Floats.read(evidence.tensors[2], _place(evidence, 2));
        return Floats.isFar(Floats.product(left, right), result, 4);
    }

    /// The record names exactly these tensors, read ones first; the order of the names is that of the record.
    function _areTheValues(Evidence calldata evidence, uint256 readCount) private view {
        RecordForm calldata record = evidence.record;
        TensorForm[] calldata tensors = evidence.tensors;
        _require(record.inputs.length == readCount && record.outputs.length == tensors.length - readCount);
        for (uint256 i = 0; i < tensors.length; i++) {
            Named calldata named = i < readCount ? record.inputs[i] : record.outputs[i - readCount];
            _require(Canonical.digestOf(tensors[i]) == named.digest);
        }
    }

    /// The element of a tensor that counts: of a tensor of one element, this one.
    function _place(Evidence calldata evidence, uint256 tensor) private pure returns (uint256) {
        uint64[] calldata shape = evidence.tensors[tensor].shape;
        if (shape.length == 0) return 0;
        uint64[] calldata others = evidence.tensors[evidence.tensors.length - 1].shape;
        _require(keccak256(abi.encode(shape)) == keccak256(abi.encode(others)));
        return evidence.element;
    }

    function _require(bool condition) private pure {
        allow(condition, "evidence");
    }
}
