// Over caches of float8.
#include "paged.h"

namespace stentor {
namespace attention {

STENTOR_ATTEND(, e4m3)

}  // namespace attention
}  // namespace stentor

using namespace stentor;

STENTOR_PAGED_ATTENTION(stentor_paged_attention_float8_f32, float, e4m3)
STENTOR_PAGED_ATTENTION(stentor_paged_attention_float8_bf16, bf16, e4m3)
