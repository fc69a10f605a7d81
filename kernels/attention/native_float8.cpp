// Attention over float8 caches, which takes long to compile, too.
#include "attend.h"

namespace stentor {
namespace attention {

STENTOR_ATTEND(, float, e4m3)
STENTOR_ATTEND(, bf16, e4m3)

}  // namespace attention
}  // namespace stentor
