// Over caches of int8.
#include "paged.h"

namespace stentor {
namespace attention {

STENTOR_ATTEND(, i8)

}  // namespace attention
}  // namespace stentor

using namespace stentor;

STENTOR_PAGED_ATTENTION(stentor_paged_attention_int8_f32, float, i8)
STENTOR_PAGED_ATTENTION(stentor_paged_attention_int8_bf16, bf16, i8)
