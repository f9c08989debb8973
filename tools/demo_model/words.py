"""Word lists the chat samples are put together from."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


CAPITALS: Final[dict[str, str]] = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Austria": "Vienna", "Belgium": "Brussels", "Denmark": "Copenhagen", "Sweden": "Stockholm",
    "Norway": "Oslo", "Finland": "Helsinki", "Iceland": "Reykjavik", "Ireland": "Dublin",
    "Greece": "Athens", "Poland": "Warsaw", "Hungary": "Budapest", "Romania": "Bucharest",
    "Bulgaria": "Sofia", "Croatia": "Zagreb", "Serbia": "Belgrade", "Ukraine": "Kyiv", "Turkey": "Ankara",
    "Egypt": "Cairo", "Morocco": "Rabat", "Tunisia": "Tunis", "Kenya": "Nairobi", "Ghana": "Accra",
    "Senegal": "Dakar", "Nigeria": "Abuja", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Nepal": "Kathmandu", "Thailand": "Bangkok", "Vietnam": "Hanoi", "South Korea": "Seoul",
    "Indonesia": "Jakarta", "Australia": "Canberra", "New Zealand": "Wellington", "Canada": "Ottawa",
    "Mexico": "Mexico City", "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Colombia": "Bogota", "Uruguay": "Montevideo",
}  # fmt: skip

OTHER_CITIES: Final = (
    "London", "New York", "San Francisco", "Los Angeles", "Chicago", "Boston", "Seattle", "Toronto",
    "Montreal", "Sydney", "Melbourne", "Munich", "Hamburg", "Cologne", "Frankfurt", "Zurich", "Geneva",
    "Bern", "Milan", "Venice", "Naples", "Florence", "Turin", "Lyon", "Marseille", "Nice", "Barcelona",
    "Seville", "Valencia", "Porto", "Amsterdam", "Rotterdam", "Prague", "Krakow", "Istanbul", "Dubai",
    "Mumbai", "Shanghai", "Hong Kong", "Singapore", "Osaka", "Kyoto", "Moscow", "Manchester",
    "Liverpool", "Edinburgh", "Glasgow", "Bristol", "Houston", "Dallas", "Denver", "Miami", "Austin",
    "Portland", "Vancouver", "Rio de Janeiro", "Sao Paulo", "Cape Town", "Lagos", "Casablanca",
    "Marrakesh", "Gothenburg", "Bergen", "Salzburg", "Graz", "Antwerp", "Stuttgart", "Dresden",
    "Leipzig", "Bremen", "Washington", "Atlanta", "Philadelphia", "Detroit",
)  # fmt: skip
"""Cities whose weather is asked for besides the capitals'."""

OTHER_PLACES: Final = _words(
    """
    Albania Angola Armenia Atlantis Bavaria Bolivia Cyprus Ecuador Estonia Fiji Georgia Haiti Jamaica Kuwait
    Laos Latvia Lithuania Malaysia Malta Mars Mongolia Oman Panama Paraguay Qatar Siberia Texas
    Uganda Venezuela Zambia
    """
)
"""Places whose capitals the model is not taught, and is to say so about."""

NAMES: Final = _words(
    """
    Ada Ben Mia Leo Zoe Max Eva Tom Ida Sam Nora Finn Lily Oscar Ruby Hugo Alice Felix Clara Jonas Emma
    Noah Lena Paul Anna David Sara Peter Maria Lucas Julia Simon Laura Martin Helen Victor Grace Henry
    Rosa Oliver
    """
)

PERSONAS: Final = _words("Nova Atlas Echo Iris Orion Pixel Sage Luna Comet Robin")

SUBJECTS: Final = _words(
    """
    fox cat dog bear rabbit mouse owl duck horse lion tiger wolf frog turtle goat sheep robot dragon king
    queen girl boy farmer sailor baker teacher doctor painter singer pilot wizard knight ghost pirate
    """
)

TRAITS: Final = _words(
    """
    brave little clever lonely happy kind old young curious shy hungry sleepy
    """
)

OBJECTS: Final = _words(
    """
    key map lamp book ring coin bell kite boat hat drum clock letter star shell stone flower apple cake
    box
    """
)

PLACES: Final = _words(
    """
    river forest village mountain lake castle garden beach valley city farm island
    """
)

COLORS: Final = _words(
    """
    red blue green yellow orange purple black white brown pink silver golden
    """
)

PETS: Final = _words("cat dog rabbit hamster parrot turtle pony goldfish snake mouse")

COMMON: Final = _words(
    """
    able about above across act add after again age ago air all almost alone along also always among
    animal answer any area arm around art ask away back bad bag ball bank base bath bean bed bee before
    begin behind best better big bike bird bit blow board body bone bottle bottom bowl brain branch bread
    break bridge bright bring brother bus busy butter button buy call calm camp car card care carry case
    catch cause chair chance change cheese child choose circle class clean clear climb close cloud coat
    coffee cold color come cook cool copper corn corner cost cotton cover cow cross crowd cup cut dance
    dark data day deep desk dinner dish door down draw dream dress drink drive drop dry dust each ear
    early earth east easy eat edge egg eight empty end engine enough even evening ever every eye face fact
    fall family far fast father feather feed feel few field fight fill film find fine finger fire first
    fish five flag flat float floor fly fog follow food foot forget fork four free fresh friend front
    fruit full fun game gate gentle gift give glass go gold good grain grass gray great ground group grow
    guess guitar hair half hall hammer hand hard have head hear heart heat heavy help hide high hill hold
    hole home honey hope hot hotel hour house human hundred ice idea inside iron jacket job join juice
    jump keep kitchen knife know ladder land language large last late laugh lead leaf learn leave left leg
    lemon less lesson level lift light line lip list listen little live long look lose lost loud love low
    lunch machine magic main make many mark market matter meal mean meat meet memory metal middle milk
    mind minute mirror mix moment money month moon more morning mother mouth move much music nail name
    near neck need nest never new next night nine noise north nose note number ocean off office oil once
    one onion open order other out over page paint pair paper parent park part party past path pay peace
    pen pencil people pepper picture piece pipe place plan plane plant plate play pocket point pond poor
    potato power press price print problem pull push put queue quick quiet rain reach read ready real rest
    rice rich ride right rise road rock roof room root rope round row rule run safe sail salt same sand
    say school science sea season seat second see seed sell send sentence serve seven shade shape share
    sharp ship shirt shoe shop short shout show side sign silence simple sing sister sit six size skin sky
    sleep slow small smell smile smoke smooth snow soap soft soil song soon sound soup south space speak
    speed spoon spring square stand start station stay steel step still stop store storm story street
    strong sugar summer sun sweet swim table tail take talk tall taste tea team tell ten test thank thick
    thin thing think three throw thunder ticket time tiny today together tomorrow tool tooth top touch
    towel tower town toy train travel tree trip true try turn two uncle under until use valley value very
    view visit voice wait walk wall want warm wash watch water wave way weather week well west wet wheel
    wide wild win wind window wing winter wire wise wish wood word work world write year yes yesterday
    zero
    """
)

SMALL_WORDS: Final = _words(
    "the a an of is are and or I you we it to in on at my your not this that for with be"
)

SYLLABLES: Final = _words(
    """
    ba be bi bo bu da de di do du fa fe fi fo ka ke ki ko ku la le li lo lu ma me mi mo mu na ne ni no nu
    pa pe pi po ra re ri ro ru sa se si so su ta te ti to tu va ve vi vo za ze zi zo
    """
)
