// Consecutive rows that are multiplied with one weight, as quant_matmul_dequant.cpp takes them. Both passes.
#pragma once
#include "ops/quant_matmul_dequant.h"

namespace anyfuse {

constexpr int kTileRows = 6;  // as core/dot.h has it

// Consecutive rows that are multiplied with one weight, in tiles of kTileRows rows, the last one shorter: full tiles
// are the fastest, and a short one costs little more than its rows. The tiles of a group are cut into blocks, and every
// block with every strip of columns is a piece of work.
struct RowGroup {
  int64_t weight;  // its number
  int64_t first, rows;
  int64_t first_tile, tiles;
  int64_t first_piece, blocks;

  int64_t begin(int64_t tile) const { return first + (tile * kTileRows < rows ? tile * kTileRows : rows); }
};

}  // namespace anyfuse

namespace {

// The last of some groups whose `number` is not above the one looked for.
inline const anyfuse::RowGroup &find_group(const anyfuse::RowGroup *groups, int64_t count,
                                           int64_t anyfuse::RowGroup::*number, int64_t wanted) {
  int64_t low = 0, high = count;
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (groups[middle].*number <= wanted ? low : high) = middle;
  }
  return groups[low];
}

inline int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The groups that have rows among [first, last), numbered from there on; returns how many.
inline int64_t list_groups(const anyfuse::GroupedRows &groups, int64_t first, int64_t last, anyfuse::RowGroup *to) {
  int64_t count = 0, tile = 0;
  for (int64_t i = 0, begin = 0; i < groups.count; begin = groups.ends[i++]) {
    const int64_t from = begin > first ? begin : first, end = groups.ends[i] < last ? groups.ends[i] : last;
    const int64_t rows = end - from;
    if (rows <= 0) continue;
    to[count++] = {i, from - first, rows, tile, divide_up(rows, anyfuse::kTileRows), 0, 0};
    tile += divide_up(rows, anyfuse::kTileRows);
  }
  return count;
}

// Cuts the groups into blocks of so many tiles at most; returns how many there are.
inline int64_t cut(anyfuse::RowGroup *groups, int64_t count, int64_t tiles_in_block) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < count; ++i) blocks += groups[i].blocks = divide_up(groups[i].tiles, tiles_in_block);
  return blocks;
}

}  // namespace
