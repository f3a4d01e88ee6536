// Splits a list of tensors into pieces of about equal work for one parallel loop. Entry pass only.
#pragma once
#include <cstdint>
#include <cstdlib>

namespace anyfuse {

class Chunks {
 public:
  struct Piece {
    int64_t tensor, begin, limit;  // elements [begin, min(limit, numel)) of that tensor
  };

  // `size` elements a piece; a multiple of what the operator must not cut.
  Chunks(int64_t tensors, int64_t size) : tensors_(tensors), size_(size) {
    if (tensors > kInline) first_ = static_cast<int64_t *>(std::malloc((tensors + 1) * sizeof(int64_t)));
    if (first_ != nullptr) first_[0] = 0;
  }
  ~Chunks() {
    if (first_ != inline_) std::free(first_);
  }
  Chunks(const Chunks &) = delete;
  Chunks &operator=(const Chunks &) = delete;

  bool allocated() const { return first_ != nullptr; }
  void set(int64_t tensor, int64_t numel) {
    first_[tensor + 1] = first_[tensor] + (numel + size_ - 1) / size_;
    elements_ += numel;
  }
  int64_t pieces() const { return first_[tensors_]; }
  int64_t elements() const { return elements_; }

  Piece at(int64_t piece) const {
    int64_t low = 0, high = tensors_;
    if (piece < tensors_ && first_[piece] == piece && first_[piece + 1] > piece) return {piece, 0, size_};
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (first_[middle] <= piece ? low : high) = middle;
    }
    const int64_t begin = (piece - first_[low]) * size_;
    return {low, begin, begin + size_};
  }

 private:
  enum { kInline = 32 };
  int64_t inline_[kInline + 1];
  int64_t *first_ = inline_;  // the number of the tensor's first piece
  int64_t tensors_, size_, elements_ = 0;
};

}  // namespace anyfuse
