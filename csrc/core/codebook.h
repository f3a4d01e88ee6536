// An ascending map of 256 values to 8-bit codes, and the table that finds a value's code by one lookup.
#pragma once
#include <cstdint>

#include "anyfuse.h"

namespace anyfuse {

struct Codebook {
  enum { kBuckets = 0xbf81 };  // the upper halves of the bits of +0 ... 1 and, from 0x8000 on, of -0 ... -1

  float value[256];
  int32_t zero_begin, zero_end;  // the entries that are 0; both 256 when no entry after them is positive
  bool keep_sign;                // a value other than 0 never gets the code of the other sign
  bool by_table;                 // `edge` may be used

  // For n in [-1, 1] with the bits u, code = (edge[u >> 16] + u) >> 16, of which a negative n takes 255 - code. An
  // entry holds the code at the start of its bucket and the distance of the one boundary inside, so that the addition's
  // carry is the exact comparison. Maps with more than one boundary in a bucket have no such table.
  uint32_t edge[kBuckets];
};

// A codebook for the time of one call, from a cache bounded in size and keyed by the map's content.
class CodebookLease {
 public:
  CodebookLease(const float *map, bool keep_sign);
  ~CodebookLease();
  CodebookLease(const CodebookLease &) = delete;
  CodebookLease &operator=(const CodebookLease &) = delete;

  // ANYFUSE_INVALID_VALUE unless the values are finite and ascending.
  anyfuse_status status() const { return status_; }
  const Codebook *get() const { return codebook_; }

 private:
  Codebook *codebook_ = nullptr;
  anyfuse_status status_ = ANYFUSE_OK;
};

}  // namespace anyfuse
