// Scratch memory of a thread, reused from call to call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stentor {

// Begins at a cache line, grows, and is kept by its owner.
class Room {
   public:
    template <class T>
    T* of(int64_t count) {
        const size_t bytes = (size_t)count * sizeof(T) + LINE;
        if (bytes_.size() < bytes) bytes_.resize(bytes);
        return (T*)(((uintptr_t)bytes_.data() + LINE - 1) / LINE * LINE);
    }

   private:
    static constexpr size_t LINE = 64;
    std::vector<char> bytes_;
};

}  // namespace stentor
