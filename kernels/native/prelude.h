// Headers that most units include, compiled once for all of them (build.py): reading them takes longer than most units' own
// code. Units include what they use nevertheless.
#include "vec.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <type_traits>
#include <vector>
