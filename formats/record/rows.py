"""What the kernels tell per record (:data:`ROW`) and per call (the status enumerations)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

ROW = np.dtype(
    [
        ("position", np.int64),  # of the record in the scanned buffer
        ("physical_offset", np.int64),
        ("queue_offset", np.int64),
        ("born_timestamp", np.int64),
        ("store_timestamp", np.int64),
        ("tags_code", np.int64),  # hash of the tag, sign-extended; 0 without tag
        ("prepared_transaction_offset", np.int64),
        ("body_position", np.int64),  # positions are in the scanned buffer
        ("topic_position", np.int64),
        ("properties_position", np.int64),
        ("size", np.int32),
        ("magic", np.int32),
        ("queue_id", np.int32),
        ("flag", np.int32),
        ("sys_flag", np.int32),
        ("reconsume_times", np.int32),
        ("body_crc", np.int32),
        ("body_size", np.int32),
        ("topic_size", np.int32),
        ("properties_size", np.int32),
    ],
    align=True,
)
"""One per record, 120 bytes, aligned. Scanning fills every field."""
assert ROW.itemsize == 120


class ScanStatus(IntEnum):
    """Why a scan stopped."""

    END = 0  # all bytes were whole records
    ROWS_FULL = 1  # more records follow than rows were given
    BLANK = 2  # a file-end blank; the next position is behind it
    EMPTY = 3  # a size of zero: nothing was written here
    BAD = 4  # no record: magic, lengths, own offset or checksum are wrong
    INCOMPLETE = 5  # a record that goes on behind the end of the bytes


class PlaceStatus(IntEnum):
    """Whether a batch was placed, or what is wrong with its first bad record."""

    OK = 0
    BAD_SIZE = 1  # lengths disagree, or the batch does not end with a record's end
    BAD_MAGIC = 2
    BAD_TOPIC = 3
    BAD_QUEUE = 4  # no such queue
    BAD_FLAGS = 5  # IPv6 store host bit differs from the broker's, inner batch, or transaction bits
    BODY_TOO_LARGE = 6
    PROPERTIES_TOO_LARGE = 7
    BAD_CRC = 8
    NO_SPACE = 9  # the log file has no room for the batch and the blank that ends the file
    EMPTY_BATCH = 10
    TOO_MANY_QUEUES = 11  # more queues than the caller's arrays for the touched ones can hold
    MISPLACED_MARK = 12  # a producer mark behind the first record
    OTHER_COUNT = 13  # not as many records as the batch's header says; the index is the number of whole ones
    NUL_IN_PROPERTIES = 14  # what a torn write leaves: a start could not tell the one from the other
