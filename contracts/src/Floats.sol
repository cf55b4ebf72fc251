// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.24;

import {allow} from "./Refusal.sol";
import {TensorForm} from "./Types.sol";

/// Normal binary numbers of IEEE 754-2019 §3.4 in 4 and 8 bytes, compared exactly in integers.
library Floats {
    /// (−1)^isNegative · mantissa · 2^exponent, with a mantissa of full width.
    struct Float {
        bool isNegative;
        uint256 mantissa;
        int256 exponent;
    }

    /// How many units in the last place an honest kernel may be off.
    uint256 private constant ULPS = 2;

    /// Element `element` of a tensor; refused where it is not there, zero, subnormal, infinite or NaN.
    function read(TensorForm calldata tensor, uint256 element) internal pure returns (Float memory) {
        uint256 width = tensor.itemBytes;
        (uint256 fraction, int256 bias) = _layout(width);
        allow((element + 1) * width <= tensor.data.length, "evidence");
        uint256 word = _littleEndian(tensor.data[element * width:(element + 1) * width]);
        uint256 top = 2 * uint256(bias) + 1;
        uint256 exponent = (word >> fraction) & top;
        allow(exponent > 0 && exponent < top, "evidence");
        uint256 mantissa = (word & ((1 << fraction) - 1)) | (1 << fraction);
        return Float(word >> (8 * width - 1) == 1, mantissa, int256(exponent) - bias - int256(fraction));
    }

    function product(Float memory left, Float memory right) internal pure returns (Float memory) {
        bool isNegative = left.isNegative != right.isNegative;
        return Float(isNegative, left.mantissa * right.mantissa, left.exponent + right.exponent);
    }

    /// Whether `found` is more than two of its own last places away from `exact`, a number in the normal range of
    /// the format of `width` bytes; refused where the numbers are too far apart for integers.
    function isFar(Float memory exact, Float memory found, uint256 width) internal pure returns (bool) {
        (, int256 bias) = _layout(width);
        int256 magnitude = int256(_bitLength(exact.mantissa)) - 1 + exact.exponent;
        int256 apart = exact.exponent - found.exponent;
        allow(1 - bias < magnitude && magnitude < bias && -128 <= apart && apart <= 128, "evidence");
        if (exact.isNegative != found.isNegative) return true;
        uint256 wide = exact.mantissa << (apart > 0 ? uint256(apart) : 0);
        uint256 scale = apart < 0 ? uint256(-apart) : 0;
        uint256 near = found.mantissa << scale;
        return (wide > near ? wide - near : near - wide) > ULPS << scale;
    }

    function _layout(uint256 width) private pure returns (uint256 fraction, int256 bias) {
        return width == 4 ? (uint256(23), int256(127)) : (uint256(52), int256(1023));
    }

    function _littleEndian(bytes calldata data) private pure returns (uint256 word) {
        for (uint256 i = data.length; i > 0; i--) {
            word = (word << 8) | uint8(data[i - 1]);
        }
    }

    function _bitLength(uint256 value) private pure returns (uint256 length) {
        for (; value > 0; value >>= 1) {
            length++;
        }
    }
}
