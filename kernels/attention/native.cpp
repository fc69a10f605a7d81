// Over caches of float32.
#include "paged.h"

namespace stentor {
namespace attention {

STENTOR_ATTEND(, float)

}  // namespace attention
}  // namespace stentor

using namespace stentor;

STENTOR_PAGED_ATTENTION(stentor_paged_attention_f32, float, float)
