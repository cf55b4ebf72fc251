// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {allow} from "./Refusal.sol";

/// Typed data (EIP-712) signed for this contract on this chain, and for no other.
abstract contract Signed {
    bytes32 private constant DOMAIN =
        keccak256("EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)");
    bytes32 private constant MOVE = keccak256("Move(address signer,uint256 nonce,uint64 deadline,bytes call)");
    bytes32 private constant KEPT = keccak256("Kept(uint64 dispute,uint64 turn,bytes32 data)");
    /// Half of the order of secp256k1: of the two signatures that say the same, only the low one counts.
    uint256 private constant HIGHEST_S = 0x7FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF5D576E7357A4501DDFE92F46681B20A0;

    address private immutable board;

    /// The number of the next move that a signer can have relayed.
    mapping(address signer => uint256) public nonces;

    constructor(address board_) {
        board = board_;
    }

    /// Make a move for `signer`, who signed Move(signer, nonce, deadline, call); what it costs comes with this call.
    /// Each signature counts once: the nonces of a signer go up by one.
    function relay(address signer, uint256 nonce, uint64 deadline, bytes calldata call_, bytes calldata signature)
        external
        payable
    {
        allow(block.timestamp <= deadline, "expired");
        allow(nonce == nonces[signer], "nonce");
        bytes32 message = keccak256(abi.encode(MOVE, signer, nonce, deadline, keccak256(call_)));
        allow(call_.length >= 4 && _isSigned(signer, message, signature), "signature");
        nonces[signer] = nonce + 1;
        (bool done, bytes memory reason) = address(this).call{value: msg.value}(abi.encodePacked(call_, signer));
        if (done) return;
        assembly ("memory-safe") {
            revert(add(reason, 32), mload(reason))
        }
    }

    /// Where the contract has a board, the data that a move names must be kept there.
    function _isKept(uint64 dispute, uint64 turn, bytes32 data, bytes calldata attestation) internal view {
        if (board == address(0)) return;
        bytes32 message = keccak256(abi.encode(KEPT, dispute, turn, data));
        allow(_isSigned(board, message, attestation), "attestation");
    }

    function _isSigned(address signer, bytes32 message, bytes calldata signature) private view returns (bool) {
        if (signature.length != 65) return false;
        (bytes32 r, bytes32 s) = (bytes32(signature[:32]), bytes32(signature[32:64]));
        if (uint256(s) > HIGHEST_S) return false;
        bytes32 typed = keccak256(abi.encodePacked(hex"1901", _domain(), message));
        address found = ecrecover(typed, uint8(signature[64]), r, s);
        return found != address(0) && found == signer;
    }

    /// Computed anew each time, so that after a fork of the chain only one side accepts a signature.
    function _domain() private view returns (bytes32) {
        return keccak256(abi.encode(DOMAIN, keccak256("Tallystick"), keccak256("1"), block.chainid, address(this)));
    }
}
